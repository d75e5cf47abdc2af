// All queues, live.
import { api, live } from "./api.js";
import { age, clear, count, curlLine, empty, exact, h, isNarrow, plural, queueLink, rate, say, tile } from "./dom.js";
import { settingsForm } from "./settings.js";
import { spark } from "./charts.js";
import { ask, toast } from "./dialogs.js";

const POINTS = 60;
const ROW_STEP = 200; // rows that are drawn, and that "Show more" adds
const COLUMNS = [
  ["name", "Queue", "name", (q) => q.name],
  ["trend", "Last hour", "spot", null],
  ["ready", "Ready", "num", (q) => q.ready],
  ["leased", "In-flight", "num", (q) => q.leased],
  ["delayed", "Delayed", "num", (q) => q.delayed],
  ["dead", "Dead", "num", (q) => q.dead],
  ["oldest", "Oldest", "num", (q) => (q.oldest ? -Date.parse(q.oldest) : -Infinity)],
  ["sent", "Sent/s", "num", (q) => q.rates.sent],
  ["acked", "Acked/s", "num", (q) => q.rates.acked],
];
let sorted = { by: "name", down: false };
let filterText = "";
let limit = ROW_STEP;

class Row {
  constructor(entry) {
    this.cells = {};
    this.name = entry.name;
    this.link = h("a", { href: queueLink(entry.name) }, entry.name);
    this.spark = spark(`Messages in ${entry.name} over the last hour`);
    this.node = h("tr", {}, COLUMNS.map(([id, label, kind]) => {
      const inside = id === "name" ? this.link : id === "trend" ? this.spark : "";
      this.cells[id] = h("td", { class: kind, "data-label": label }, inside);
      return this.cells[id];
    }));
  }

  show(entry) {
    this.entry = entry;
    for (const id of ["ready", "leased", "delayed", "dead"]) {
      say(this.cells[id], entry[id] === null ? "–" : count(entry[id]));
      this.cells[id].className = `num${entry[id] ? (id === "dead" ? " bad" : "") : " zero"}`;
    }
    say(this.cells.oldest, entry.oldest ? age(entry.oldest) : "–");
    for (const id of ["sent", "acked"]) {
      say(this.cells[id], rate(entry.rates[id]));
      this.cells[id].classList.toggle("zero", !entry.rates[id]);
    }
  }

  draw(past = []) {
    this.spark.show([...past, this.entry.total], POINTS + 1);
  }
}

export async function overview(main, { signal, identity }) {
  document.title = "Queues · MiniQ";
  const rows = new Map(); // of the queues that were shown: with thousands of queues, drawing all would take seconds
  const past = new Map();
  const body = h("tbody");
  const tiles = h("div", { class: "tiles" });
  const filter = h("input", { class: "search", type: "search", placeholder: isNarrow() ? "Filter queues" : "Filter queues  ( / )", "aria-label": "Filter queues", value: filterText,
    oninput: () => { filterText = filter.value; arrange(); } });
  const heads = COLUMNS.map(([id, label, kind, value]) => h("th", { class: kind, scope: "col" },
    value ? h("button", { type: "button", onclick: () => { sorted = { by: id, down: sorted.by === id ? !sorted.down : id !== "name" }; arrange(); } }, label) : label));
  const nothing = h("div");
  const table = h("table", { class: "cards many" }, h("caption", { class: "visually-hidden" }, "Queues"), h("thead", {}, h("tr", {}, heads)), body);
  const manage = !identity || identity.allow.some((scope) => /^(\*|manage)/.test(scope));
  clear(main,
    h("div", { class: "head" }, h("h1", {}, "Queues"), filter,
      h("div", { class: "actions" }, manage && h("button", { type: "button", class: "main", onclick: create }, "New queue"))),
    tiles, h("div", { class: "card flush" }, h("div", { class: "scroll" }, table), nothing));

  function arrange() {
    const value = COLUMNS.find(([id]) => id === sorted.by)[3];
    const text = filterText.trim().toLowerCase();
    const shown = [...live.queues.values()].filter((entry) => !text || entry.name.toLowerCase().includes(text));
    shown.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const order = x < y ? -1 : x > y ? 1 : 0;
      return (sorted.down ? -order : order) || (a.name < b.name ? -1 : 1);
    });
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
    if (!row) { row = new Row(entry); rows.set(entry.name, row); }
    const before = row.entry?.total;
    row.show(entry);
    if (before !== entry.total) row.draw(past.get(entry.name));
    return row.node;
  }

  function updateTiles() {
    const every = [...live.queues.values()];
    const total = (of) => every.reduce((so, q) => so + of(q), 0);
    const dead = total((q) => q.dead);
    const given = [["queues", exact(every.length)], ["ready", count(total((q) => q.ready))], ["in-flight", count(total((q) => q.leased))],
      ["delayed", count(total((q) => q.delayed))], ["dead letters", count(dead)], ["sent/s", rate(total((q) => q.rates.sent))],
      ["acked/s", rate(total((q) => q.rates.acked))]];
    if (tiles.children.length !== given.length) clear(tiles, given.map(([label, value]) => tile(label, value)));
    else given.forEach(([, value], place) => say(tiles.children[place].firstChild, value));
    tiles.children[4].classList.toggle("bad", dead > 0);
    const quiet = every.length === 1 && every[0].name === "default" && !every[0].total;
    hint.hidden = !quiet;
  }

  const hint = h("section", { class: "card", hidden: true }, empty("Send your first message",
    "The first message sent to a queue creates it. From a shell:", curlLine("emails", identity && !identity.open)));
  main.append(hint);

  function update() {
    for (const name of rows.keys()) if (!live.queues.has(name)) rows.delete(name);
    updateTiles();
    arrange();
  }

  async function loadTrends() {
    const trends = await api.trends({ series: "total", points: POINTS });
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
