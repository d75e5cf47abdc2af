// All queues, live: what is wrong first, and dead letters with the queue that they come from.
import { api, live } from "./api.js";
import { age, clear, count, empty, exact, h, isKeyed, isNarrow, plural, queueLink, rate, say, sending, tile } from "./dom.js";
import { settingsForm } from "./settings.js";
import { spark } from "./charts.js";
import { ask, toast } from "./dialogs.js";
import { redrive } from "./redrive.js";
import { consumersOf, deaths, origins, problems, trouble, worst } from "./words.js";

const FINE = 100; // queues of which every step of the last hour is drawn; of more, every minute
const ROW_STEP = 200; // rows that are drawn, and that "Show more" adds
const NAMED = 4; // queues that the lines above the table name
const COLUMNS = [
  ["name", "Queue", "name", (q) => q.name],
  ["trend", "Last hour", "spot", null],
  ["ready", "Ready", "num", (q) => q.ready],
  ["leased", "In-flight", "num", (q) => q.leased],
  ["delayed", "Delayed", "num", (q) => q.delayed],
  ["dead", "Dead", "num", (q) => q.dead],
  ["oldest", "Oldest", "num", (q) => (q.oldest ? -Date.parse(q.oldest) : -Infinity)],
  ["consumers", "Consumers", "num", consumersOf],
  ["sent", "Sent/s", "num", (q) => q.rates.sent],
  ["acked", "Acked/s", "num", (q) => q.rates.acked],
];
// What hurts: queues that stand still, then those that fail now and then, with dead letters or a pause; of each, the oldest
// message first, then by name.
const grade = (q) => ({ bad: 3, warn: 2 }[trouble(q)] ?? (q.dead || q.problems.length ? 1 : 0));
const hurts = (a, b) => grade(b) - grade(a) || (grade(a) ? oldest(a) - oldest(b) : 0);
const oldest = (q) => Date.parse(q.oldest ?? q.claim?.made_at ?? q.dead_oldest) || Infinity;
let sorted = { by: "", down: true };
let filterText = "";
let limit = ROW_STEP;

class Row {
  constructor(entry, onRedrive) {
    this.cells = {};
    this.onRedrive = onRedrive;
    this.link = h("a", { href: queueLink(entry.name) }, entry.name);
    this.words = h("ul", { class: "words" });
    this.spark = spark(`Messages in ${entry.name}`);
    this.node = h("tr", {}, COLUMNS.map(([id, label, kind]) => {
      const inside = id === "name" ? [this.link, this.words] : id === "trend" ? this.spark : "";
      this.cells[id] = h("td", { class: kind, "data-label": label }, inside);
      return this.cells[id];
    }));
  }

  show(entry) {
    this.entry = entry;
    for (const id of ["ready", "leased", "delayed", "dead", "consumers"]) {
      const value = id === "consumers" ? consumersOf(entry) : entry[id];
      say(this.cells[id], value === null ? "–" : count(value));
      this.cells[id].className = `num${value ? (id === "dead" ? " bad" : "") : " zero"}`;
    }
    say(this.cells.oldest, entry.oldest ? age(entry.oldest) : "–");
    this.cells.oldest.classList.toggle("zero", !entry.oldest);
    for (const id of ["sent", "acked"]) {
      say(this.cells[id], rate(entry.rates[id]));
      this.cells[id].classList.toggle("zero", !entry.rates[id]);
    }
    const lines = problems(entry);
    if (entry.dead) lines.push({ kind: "dead", severity: "", text: deaths(entry) });
    const kinds = lines.map(({ kind, severity }) => kind + severity).join();
    if (kinds !== this.kinds) {
      this.kinds = kinds;
      clear(this.words, lines.map(({ kind, severity }) => h("li", { class: `${kind} ${severity}` }, kind === "dead" ? h("a", { href: `#/dead/${encodeURIComponent(entry.dead_letter_queue)}` }) : h("span"),
        kind === "dead" && this.onRedrive && h("button", { type: "button", "aria-label": `Redrive the dead letters of ${entry.name}`, onclick: () => this.onRedrive(this.entry) }, "Redrive"))));
      this.words.hidden = !lines.length;
    }
    lines.forEach(({ text }, place) => { const line = this.words.children[place].firstChild; say(line, text); line.title = text; });
  }

  draw(past = []) { this.spark.show([...past, this.entry.total]); }
}

export async function overview(main, { signal, identity }) {
  document.title = "Queues · MiniQ";
  const rows = new Map(); // of the queues that were shown: with thousands of queues, drawing all would take seconds
  const past = new Map();
  const body = h("tbody");
  const tiles = h("div", { class: "tiles" });
  const status = h("div", { class: "status" }, h("b"), h("ul"));
  const filter = h("input", { class: "search", type: "search", placeholder: isNarrow() ? "Filter queues" : "Filter queues  ( / )", "aria-label": "Filter queues", value: filterText,
    oninput: () => { filterText = filter.value; arrange(); } });
  const order = h("select", { "aria-label": "Sort by", onchange: () => { sorted = { by: order.value, down: order.value !== "name" }; arrange(); } },
    [["", "Problems first"], ...COLUMNS.filter(([, , , value]) => value)].map(([id, label]) => h("option", { value: id, selected: id === sorted.by }, label)));
  const heads = COLUMNS.map(([id, label, kind, value]) => h("th", { class: kind, scope: "col" },
    value ? h("button", { type: "button", onclick: () => { sorted = { by: id, down: sorted.by === id ? !sorted.down : id !== "name" }; arrange(); } }, label) : label));
  const nothing = h("div");
  const table = h("table", { class: "cards many inline" }, h("caption", { class: "visually-hidden" }, "Queues"), h("thead", {}, h("tr", {}, heads)), body);
  const manage = !identity || identity.allow.some((scope) => /^(\*|manage)/.test(scope));
  clear(main,
    h("div", { class: "head" }, h("h1", {}, "Queues"), filter, order,
      h("div", { class: "actions" }, manage && h("button", { type: "button", class: "main", onclick: create }, "New queue"))),
    status, tiles, h("div", { class: "card flush" }, h("div", { class: "scroll" }, table), nothing));

  function arrange() {
    const value = COLUMNS.find(([id]) => id === sorted.by)?.[3];
    const text = filterText.trim().toLowerCase();
    const dead = origins();
    const shown = [...live.queues.values()].filter((entry) => (text ? entry.name.toLowerCase().includes(text) : !dead.has(entry.name)));
    shown.sort((a, b) => {
      const [x, y] = value ? [value(a), value(b)] : [0, 0];
      const first = value ? (x < y ? -1 : x > y ? 1 : 0) * (sorted.down ? -1 : 1) : hurts(a, b);
      return first || (a.name < b.name ? -1 : 1);
    });
    order.value = sorted.by;
    heads.forEach((head, place) => {
      if (COLUMNS[place][0] === sorted.by) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const nodes = shown.slice(0, limit).map(draw);
    // Move only the rows that are out of place: redrawing hundreds of rows is expensive.
    nodes.forEach((node, place) => { if (body.children[place] !== node) body.insertBefore(node, body.children[place] ?? null); });
    while (body.children.length > nodes.length) body.lastChild.remove();
    const none = live.known && !nodes.length;
    table.hidden = none;
    const left = shown.length - nodes.length;
    clear(nothing, left > 0 && h("div", { class: "more" }, h("button", { type: "button", onclick: () => { limit += ROW_STEP; arrange(); } },
      left > ROW_STEP ? `Show ${ROW_STEP} more of ${plural(left, "queue")}` : `Show ${plural(left, "more queue")}`)), none && (live.queues.size
      ? empty("No matching queues", `${plural(live.queues.size, "queue")} in total. Change or clear the filter.`)
      : empty("No queues to show", "This key has no read access to any queue.")));
  }

  function draw(entry) {
    let row = rows.get(entry.name);
    if (!row) { row = new Row(entry, manage && onRedrive); rows.set(entry.name, row); }
    const before = row.entry?.total;
    row.show(entry);
    if (before !== entry.total) row.draw(past.get(entry.name));
    return row.node;
  }

  const onRedrive = (entry) => redrive(entry.dead_letter_queue, live.queues.get(entry.dead_letter_queue)?.total ?? entry.dead);

  /** What is wrong with all queues, in words: how many are in trouble, and of the worst what it is and for how long. */
  function summarise(every, died) {
    const troubled = every.filter(trouble).sort(hurts);
    const bad = troubled.filter((q) => trouble(q) === "bad");
    const some = troubled.length - bad.length;
    status.className = `status ${bad.length ? "bad" : some ? "warn" : ""}`;
    say(status.firstChild, !live.known ? "" : bad.length ? `${plural(bad.length, "queue")} ${bad.length === 1 ? "needs" : "need"} attention${some ? `; in ${exact(some)} more, some work fails` : ""}:`
      : some ? `In ${plural(some, "queue")}, some work fails:`
      : died ? `No queue is stuck or failing now. ${plural(died, "dead letter")} ${died === 1 ? "waits" : "wait"} to be redriven or discarded.` : "No queue is stuck or failing.");
    const listed = bad.length ? bad : troubled;
    const named = listed.slice(0, NAMED);
    const names = `${named.map(({ name }) => name).join("/")} ${listed.length > NAMED}`;
    if (names !== status.dataset.names) {
      status.dataset.names = names;
      clear(status.lastChild, named.map(({ name }) => h("li", {}, h("a", { href: queueLink(name) }, name), h("span"))), listed.length > NAMED && h("li", {}, h("span")));
    }
    named.forEach((q, place) => {
      const problem = worst(q);
      const line = status.lastChild.children[place];
      line.className = problem.severity;
      say(line.lastChild, `: ${problem.short}`);
    });
    if (listed.length > NAMED) say(status.lastChild.lastChild.lastChild, `and ${plural(listed.length - NAMED, "more queue")}`);
  }

  function updateTiles() {
    const dead = origins();
    const every = [...live.queues.values()].filter(({ name }) => !dead.has(name));
    const total = (of) => every.reduce((so, q) => so + of(q), 0);
    const died = [...dead.keys()].reduce((so, name) => so + live.queues.get(name).total, 0);
    summarise(every, died);
    const given = [["queues", exact(every.length)], ["ready", count(total((q) => q.ready))], ["in-flight", count(total((q) => q.leased))],
      ["delayed", count(total((q) => q.delayed))], ["dead", count(died)], ["sent/s", rate(total((q) => q.rates.sent))],
      ["acked/s", rate(total((q) => q.rates.acked))]];
    const oldest = every.map((q) => q.oldest).filter(Boolean).sort()[0];
    given.splice(5, 0, ["oldest", oldest ? age(oldest) : "–"]);
    if (tiles.children.length !== given.length) clear(tiles, given.map(([label, value]) => tile(label, value)));
    else given.forEach(([, value], place) => say(tiles.children[place].firstChild, value));
    tiles.children[4].classList.toggle("bad", died > 0);
    const quiet = every.length === 1 && every[0].name === "default" && !every[0].total;
    hint.hidden = !quiet;
  }

  const hint = h("section", { class: "card", hidden: true }, empty("Send your first message",
    "The first message sent to a queue creates it. From a shell, or in Python:", ...sending("emails", isKeyed(identity))));
  main.append(hint);

  function update() {
    for (const name of rows.keys()) if (!live.queues.has(name)) rows.delete(name);
    updateTiles();
    arrange();
  }

  async function loadTrends() {
    const trends = await api.trends({ series: "total", points: live.queues.size > FINE ? 60 : 240 });
    past.clear();
    for (const trend of trends.queues) past.set(trend.name, trend.series.total);
    for (const [name, row] of rows) row.draw(past.get(name));
  }

  async function create() {
    const name = h("input", { required: true, autocomplete: "off", spellcheck: false, pattern: "[A-Za-z0-9._\\-]{1,128}", title: "1 to 128 characters: A-Z a-z 0-9 . _ -" });
    const form = settingsForm(null);
    const made = await ask({
      title: "New queue", action: "Create", body: [h("label", { class: "field" }, h("span", {}, "Name"), name), form.node],
      submit: async () => {
        if (live.queues.has(name.value)) throw new Error(`Queue ${name.value} already exists.`);
        return api.configure(name.value, form.changes());
      },
    });
    if (made) { toast(`Created ${made.name}.`); location.hash = queueLink(made.name); }
  }

  live.addEventListener("stats", update, { signal });
  if (live.known) update();
  const refreshTrends = () => loadTrends().catch(() => {});
  live.addEventListener("stats", () => setTimeout(refreshTrends, 0), { signal, once: true });
  const timer = setInterval(refreshTrends, 60000);
  signal.addEventListener("abort", () => clearInterval(timer));
  if (live.known) await loadTrends();
}
