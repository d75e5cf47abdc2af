// One queue: live charts, messages, consumers, settings, and the actions on the whole queue.
import { api, live } from "./api.js";
import { age, badge, bytes, clear, count, empty, exact, firstLine, h, isNarrow, now, plural, python, queueLink, say, sending, stateLabel, tile } from "./dom.js";
import { Chart } from "./charts.js";
import { send } from "./compose.js";
import { ConsumerCard } from "./consumers.js";
import { MessageList } from "./messages.js";
import { settingsForm } from "./settings.js";
import { attempt, confirm, toast } from "./dialogs.js";
import { redrive } from "./redrive.js";
import { origins, problems } from "./words.js";

const SLOTS = 240;
const STEP = 15000; // ms of an interval
const LATE = 2000; // ms after its end until the broker surely has its numbers

export async function queuePage(main, { args: [name], signal }) {
  document.title = `${name} · MiniQ`;
  const [info, me] = await Promise.all([api.queue(name), api.whoami(name)]);
  if (signal.aborted) return;
  const may = (verb) => me.verbs.includes(verb);
  const from = origins().get(name) ?? [];
  const isDead = from.length > 0 || name.endsWith(".dead");

  // Numbers and charts
  const numbers = isDead ? [["total", "dead letters"], ["leased", "in-flight"], ["oldest", "oldest"], ["bytes", "bytes"]]
    : [["ready", "ready"], ["leased", "in-flight"], ["delayed", "delayed"], ["dead", "dead letters"], ["oldest", "oldest"], ["bytes", "bytes"]];
  const tiles = h("div", { class: "tiles" }, numbers.map(([, label]) => tile(label, "–")));
  const words = h("ul", { class: "words card", hidden: true });
  const consumers = new ConsumerCard(name, signal);
  const depth = new Chart("Messages", "in each state", ["ready", "in-flight", "delayed"], SLOTS, STEP / 1000);
  const flow = new Chart("Throughput", "messages per second", ["sent", "received", "acked", "failed"], SLOTS, STEP / 1000, "rate");
  let drawn = 0; // the last interval that is drawn
  const progress = h("p", { class: "note", role: "status" });

  function update() {
    const q = live.queues.get(name);
    if (!q) return;
    const shown = { ...q, oldest: q.oldest ? age(q.oldest) : "–", bytes: bytes(q.bytes) };
    numbers.forEach(([id], place) => {
      const value = shown[id];
      say(tiles.children[place].firstChild, value === null ? "–" : typeof value === "number" ? count(value) : value);
      tiles.children[place].classList.toggle("bad", id === (isDead ? "total" : "dead") && value > 0);
    });
    const lines = problems(q).filter(({ kind }) => kind !== "paused");
    words.hidden = !lines.length;
    if (lines.map(({ text }) => text).join("\n") !== [...words.children].map((line) => line.textContent).join("\n")) clear(words, lines.map(({ kind, severity, text }) => h("li", { class: `${kind} ${severity}` }, text)));
    setPaused(q.problems.includes("paused"));
    consumers.show(q);
    why.changed(q);
    depth.live([q.ready, q.leased, q.delayed]);
    flow.live([q.rates.sent, q.rates.received, q.rates.acked, q.rates.failed + q.rates.dead]); // a death is the last failure
    const over = Math.floor((now() - LATE) / STEP);
    if (over > drawn) { drawn = over; loadTrends().catch(() => {}); }
  }

  async function loadTrends() {
    const { queues: [trend] } = await api.trends({ queue: name, series: "ready,leased,delayed,sent,received,acked,failed,dead", points: 240 });
    if (!trend || signal.aborted) return;
    const { ready, leased, delayed, sent, received, acked, failed, dead } = trend.series;
    depth.set([ready, leased, delayed]);
    flow.set([sent, received, acked, failed.map((value, place) => value + dead[place])]);
  }

  // Messages
  const nothing = (status) => (status || !may("send")
    ? empty(status ? `No ${stateLabel(status)} messages` : "This queue is empty", "Refresh to look again.")
    : empty("This queue is empty", "Send a message here, from a shell, or in Python; the last lines consume:", ...sending(name, !me.open), python(!me.open, `mq.queue("${name}").consume(lambda message: print(message.body))`)));
  const list = new MessageList(name, signal, nothing, { manage: may("manage"), dead: isDead });
  const why = new Failures(name, signal);
  const states = [["", "All"], ["ready", "Ready"], ["leased", "In-flight"], ["delayed", "Delayed"]];
  const segments = h("div", { class: "segments", role: "group", "aria-label": "State" }, states.map(([value, label]) =>
    h("button", { type: "button", "aria-pressed": String(value === ""), onclick: (event) => {
      for (const button of segments.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      attempt(() => list.show(value));
    } }, label)));
  const search = h("input", { class: "search", type: "search", placeholder: isNarrow() ? "Search messages" : "Search ID, key, headers, error and body  ( / )", "aria-label": "Search messages" });
  const searching = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); attempt(() => list.show(list.status, search.value.trim())); } },
    segments, search, h("button", { type: "submit" }, "Search"), h("button", { type: "button", onclick: () => attempt(() => list.show()) }, "Refresh"));
  search.addEventListener("search", () => { if (!search.value) attempt(() => list.show(list.status, "")); });

  // Settings
  const paused = badge("paused", "delayed");
  const pauseButton = may("manage") && !isDead && h("button", { type: "button", onclick: onPause }, "Pause");
  const setPaused = (is) => { paused.hidden = !is; if (pauseButton) say(pauseButton, is ? "Resume" : "Pause"); };
  setPaused(info.settings.paused);
  let form = settingsForm(info.settings, !may("manage"));
  const settings = h("form", { class: "card", hidden: true, onsubmit: async (event) => {
    event.preventDefault();
    let changes;
    try { changes = form.changes(); } catch (error) { toast(error.message, true); return; }
    if (!Object.keys(changes).length) { toast("No changes to save."); return; }
    const done = await attempt(() => api.configure(name, changes), "Saved.");
    if (!done) return;
    const old = form.node;
    form = settingsForm(done.settings); // others may have changed settings too
    old.replaceWith(form.node);
    setPaused(done.settings.paused);
  } }, h("h2", {}, "Settings"), form.node, may("manage") && h("div", { class: "more" }, h("button", { class: "main", type: "submit" }, "Save settings")));
  const tabs = h("div", { class: "segments", role: "group", "aria-label": "View" }, [["Messages", list.node], ["Settings", settings]].map(([label, part], place) =>
    h("button", { type: "button", "aria-pressed": String(!place), onclick: (event) => {
      for (const button of tabs.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      for (const panel of [list.node, settings]) panel.hidden = panel !== part;
      searching.hidden = part !== list.node;
    } }, label)));

  // Actions
  const total = async () => (await api.queue(name)).counts.total;
  async function onSend() {
    const sent = await send(name);
    if (sent) { toast(`Sent ${sent.ids[0]}.`); list.show().catch(() => {}); }
  }
  async function onPause() {
    const is = pauseButton.textContent === "Pause";
    const done = await attempt(() => api.configure(name, { paused: is }), is ? `Paused ${name}: its messages wait.` : `Resumed ${name}.`);
    if (done) setPaused(done.settings.paused);
  }
  async function onPurge() {
    const done = await confirm({ title: `Purge ${name}?`, action: "Purge", type: name, submit: () => api.purge(name),
      text: `${plural(await total(), "message")} will be removed, including those in flight. This can't be undone.` });
    if (done) { toast(`Purged ${plural(done.purged, "message")}.`); list.show().catch(() => {}); }
  }
  async function onDelete() {
    const done = await confirm({ title: `Delete ${name}?`, action: "Delete", type: name, submit: () => api.deleteQueue(name),
      text: `The queue, its settings and ${plural(await total(), "message")} will be deleted. This can't be undone.` });
    if (done) { toast(`Deleted ${name}.`); location.hash = "#/"; }
  }
  async function onRedrive() {
    if (await redrive(name, await total())) { list.show().catch(() => {}); watchRedrive(); }
  }
  async function watchRedrive() {
    for (;;) {
      const { redrive: running } = await api.queue(name).catch(() => ({}));
      say(progress, running?.running ? `Redrive in progress: ${count(running.moved)} moved.` : "");
      if (!running?.running || signal.aborted) return;
      await new Promise((done) => { setTimeout(done, 1000); });
    }
  }

  clear(main,
    h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/" }, "Queues")), h("h1", {}, name),
      isDead && badge("dead-letter queue", "dead"), paused, !may("manage") && badge("read-only"),
      from.length > 0 && h("span", { class: "note" }, "of ", from.map((one, place) => [place ? ", " : "", h("a", { href: queueLink(one) }, one)])),
      h("div", { class: "actions" },
        may("send") && h("button", { type: "button", class: "main", "data-key": "send", onclick: onSend }, "Send"),
        isDead && h("a", { class: "button", href: `#/dead/${encodeURIComponent(name)}` }, "Group by error"),
        isDead && may("manage") && h("button", { type: "button", onclick: onRedrive }, "Redrive"),
        pauseButton,
        may("manage") && h("button", { type: "button", class: "bad", onclick: onPurge }, "Purge"),
        may("manage") && name !== "default" && h("button", { type: "button", class: "bad", onclick: onDelete }, "Delete"))),
    progress, words, tiles, h("div", { class: "panels" }, depth.node, flow.node, consumers.node), why.node, h("div", { class: "row apart" }, tabs, searching), list.node, settings);
  if (info.redrive?.running) watchRedrive();
  live.addEventListener("stats", update, { signal });
  consumers.load();
  if (live.known) update(); else await loadTrends().catch(() => {});
  await list.show();
}

/** Why messages failed in the last hour, in groups; asked again when another one has failed. */
class Failures {
  #seen = null; #body; #asked = false;

  constructor(queue, signal) {
    Object.assign(this, { queue, signal });
    this.#body = h("tbody");
    this.node = h("section", { class: "card flush", hidden: true }, h("div", { class: "card-head" }, h("h2", {}, "Failures ", h("small", {}, "of the last hour, by error"))),
      h("div", { class: "scroll" }, h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Failures of the last hour"),
        h("thead", {}, h("tr", {}, [["Error", ""], ["Times", "num"], ["First", "num"], ["Last", "num"]].map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))), this.#body)));
  }

  changed({ failures, last_death }) {
    const seen = JSON.stringify([failures?.last_at, failures?.failed, last_death?.at]);
    if (seen === this.#seen || this.#asked) return;
    this.#seen = seen;
    this.#asked = true;
    api.failures(this.queue, this.signal).then(({ failures: groups }) => this.#draw(groups)).catch(() => {}).finally(() => { this.#asked = false; });
  }

  #draw(groups) {
    this.node.hidden = !groups.length;
    const opened = new Set([...this.#body.querySelectorAll("details[open] summary")].map((one) => one.textContent));
    clear(this.#body, groups.map((group) => {
      const line = firstLine(group.error);
      const more = group.error.trim() !== line;
      return h("tr", {}, h("td", { class: "full last" }, more ? h("details", { open: opened.has(line) }, h("summary", {}, h("bdi", {}, line)), h("pre", { class: "body", tabIndex: 0, dir: "auto" }, group.error)) : h("bdi", {}, line)),
        h("td", { class: "num bad", "data-label": "Times" }, exact(group.count)),
        h("td", { class: "num", "data-label": "First" }, h("span", { title: group.first_at }, `${age(group.first_at)} ago`)),
        h("td", { class: "num", "data-label": "Last" }, h("span", { title: group.last_at }, `${age(group.last_at)} ago`)));
    }));
  }
}
