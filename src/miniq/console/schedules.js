// Schedules: when each one sends next and what became of the last times, with pause, run now and delete.
import { api } from "./api.js";
import { badge, clear, covers, curl, duration, empty, encode, exact, firstLine, h, isKeyed, messageLink, moment, plural, preview, python, queueLink, say, until } from "./dom.js";
import { attempt, confirm, toast } from "./dialogs.js";

const REFRESH = 3000; // ms between two looks at the broker
const link = (name) => `#/schedules/${encode(name)}`;
const target = ({ queue, topic }) => (queue ? h("a", { href: queueLink(queue) }, queue) : ["topic ", h("a", { href: `#/topics/${encode(topic)}` }, topic)]);
const zone = () => `Times are local: ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;

/** When a schedule is due, in words. */
function timing({ cron, every, at, timezone }) {
  if (cron) return [h("code", {}, cron), ` ${timezone}`];
  return every ? `every ${every < 60 ? `${every} s` : duration(every)}` : ["once, ", moment(at)];
}

const state = ({ paused, next }) => (paused ? badge("paused", "delayed") : next.length ? null : badge("finished", ""));

/** What happened at a moment: the outcome, and the message or the error. */
function outcome(result, queue) {
  const label = badge(result.on_request ? "run" : result.outcome, result.outcome === "failed" ? "dead" : result.outcome === "sent" ? "ready" : "");
  const count = result.count > 1 ? ` ${exact(result.count)}${result.until && result.count === 1000 ? " or more" : ""} moments` : "";
  const until = result.until ? [" up to ", moment(result.until)] : null;
  const detail = result.error ? h("span", { class: "error" }, firstLine(result.error))
    : result.id && queue ? h("a", { class: "mono once", href: messageLink(queue, result.id) }, result.id.slice(0, 13), "…") : null;
  const copies = typeof result.queues === "number" ? h("span", { class: "note" }, `in ${plural(result.queues, "queue")}`) : null;
  return [label, count, until, " ", detail, copies];
}

/** Whether this key allows a schedule of a queue to be run, paused and deleted. */
function mayChange(identity, queue) {
  if (!identity || identity.open) return true;
  const allows = (verb) => identity.allow.some((scope) => [verb, "*"].includes(scope.split(":")[0]) && covers(scope, queue));
  return allows("manage") && allows("send");
}

/** The buttons of a schedule. `done` gets the schedule as it is afterwards, or null once it is deleted. */
function buttons(name, done) {
  const act = async (work, text) => { const found = await attempt(work, text); if (found) done(found); };
  const pause = h("button", { type: "button", onclick: () => act(() => api.pauseSchedule(name, pause.textContent === "Pause"), (found) => `${name} ${found.paused ? "paused" : "resumed"}.`) }, "Pause");
  const run = h("button", { type: "button", onclick: () => act(() => api.runSchedule(name), `${name}: sent now.`) }, "Run now");
  return { nodes: [run, pause], show: ({ paused }) => say(pause, paused ? "Resume" : "Pause") };
}

class Row {
  constructor({ name, queue }, identity, changed) {
    this.when = h("td", { class: "spot", "data-label": "When" });
    this.next = h("td", { class: "spot", "data-label": "Next" });
    this.last = h("td", { class: "last", "data-label": "Last" });
    this.target = h("td", { class: "spot", "data-label": "To" });
    this.buttons = mayChange(identity, queue) ? buttons(name, changed) : null;
    this.node = h("tr", {}, h("td", { class: "name" }, h("a", { href: link(name) }, name)), this.target, this.when, this.next, this.last,
      h("td", { class: "bare acts" }, h("div", { class: "row" }, this.buttons?.nodes)));
  }

  show(schedule) {
    const text = JSON.stringify(schedule);
    this.buttons?.show(schedule);
    if (text !== this.text) {
      this.text = text;
      clear(this.target, target(schedule));
      clear(this.when, h("span", {}, timing(schedule)));
      const [result] = schedule.results;
      clear(this.last, result ? [moment(result.moment), h("div", {}, outcome(result, schedule.queue))] : "–");
    }
    const [first] = schedule.next;
    clear(this.next, state(schedule), !schedule.paused && first && [moment(first), h("div", { class: "note" }, until(first))]);
  }
}

export async function schedulesPage(main, { args: [name], signal, identity }) {
  document.title = "Schedules · MiniQ";
  if (name) { await schedulePage(main, name, signal, identity); return; }
  const keyed = isKeyed(identity);
  const rows = new Map();
  const body = h("tbody");
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Schedules"), h("thead", {}, h("tr", {},
    ["Schedule", "To", "When", "Next", "Last"].map((text) => h("th", { scope: "col" }, text)), h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Actions")))), body);
  const foot = h("div");
  clear(main, h("div", { class: "head" }, h("h1", {}, "Schedules")),
    h("p", { class: "note" }, `A schedule sends a message when its time comes. ${zone()}`),
    h("div", { class: "card flush" }, h("div", { class: "scroll" }, table), foot));

  async function load() {
    const { schedules } = await api.schedules(signal);
    if (signal.aborted) return;
    const names = new Set(schedules.map((schedule) => schedule.name));
    for (const [known, row] of rows) if (!names.has(known)) { row.node.remove(); rows.delete(known); }
    schedules.forEach((schedule, place) => {
      let row = rows.get(schedule.name);
      if (!row) { row = new Row(schedule, identity, () => load().catch(() => {})); rows.set(schedule.name, row); }
      row.show(schedule);
      if (body.children[place] !== row.node) body.insertBefore(row.node, body.children[place] ?? null);
    });
    table.hidden = !schedules.length;
    clear(foot, !schedules.length && empty("No schedules", "A schedule sends a message by the clock. From a shell, or in Python:",
      curl(keyed, "/schedules/nightly", { queue: "reports", body: { report: "sales" }, cron: "0 3 * * *" }, "PUT"),
      python(keyed, 'mq.schedule("nightly", queue="reports", body={"report": "sales"}, cron="0 3 * * *")')));
  }
  await load();
  repeat(load, signal);
}

async function schedulePage(main, name, signal, identity) {
  document.title = `${name} · MiniQ`;
  const facts = h("dl", { class: "facts" });
  const moments = h("ol", { class: "timeline" });
  const results = h("tbody");
  const none = h("p", { class: "note" });
  const body = h("pre", { class: "body" });
  const actions = h("div", { class: "actions" });
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Last results"),
    h("thead", {}, h("tr", {}, ["Moment", "Handled", "Result"].map((text) => h("th", { scope: "col" }, text)))), results);
  let shown = "";
  let acts = null;

  function show(schedule) {
    if (!acts && mayChange(identity, schedule.queue)) {
      acts = buttons(name, show);
      clear(actions, acts.nodes, h("button", { type: "button", class: "bad", onclick: remove }, "Delete"));
    }
    acts?.show(schedule);
    const text = JSON.stringify(schedule);
    if (text === shown) return;
    shown = text;
    const fact = (label, ...value) => [h("dt", {}, label), h("dd", {}, value)];
    clear(facts, fact("To", target(schedule)), fact("When", timing(schedule)), fact("State", state(schedule) ?? badge("active", "ready")),
      fact("Missed moments", { skip: "are skipped", last: "the latest is sent", all: "all are sent" }[schedule.catch_up]),
      Object.entries(schedule.headers ?? {}).map(([header, value]) => fact(`Header ${header}`, h("bdi", {}, value))));
    clear(moments, schedule.next.map((at) => h("li", {}, moment(at), h("span", { class: "note" }, ` ${until(at)}`))));
    moments.hidden = !schedule.next.length;
    const readable = schedule.body !== undefined || schedule.data !== undefined;
    say(body, !readable ? "This key may not read the queue." : schedule.body !== undefined && typeof schedule.body !== "string" ? JSON.stringify(schedule.body, null, 2) : preview(schedule));
    clear(results, schedule.results.map((result) => h("tr", {}, h("td", { class: "spot", "data-label": "Moment" }, moment(result.moment)), h("td", { class: "spot", "data-label": "Handled" }, moment(result.at)),
      h("td", { class: "last", "data-label": "Result" }, outcome(result, schedule.queue)))));
    table.hidden = !schedule.results.length;
    say(none, schedule.results.length ? "" : "It has not fired yet.");
  }

  async function remove() {
    if (await confirm({ title: `Delete ${name}?`, text: "Messages that it has sent stay.", action: "Delete", submit: () => api.deleteSchedule(name) })) {
      toast(`Deleted ${name}.`);
      location.hash = "#/schedules";
    }
  }

  const load = async () => { const schedule = await api.schedule(name, signal); if (!signal.aborted) show(schedule); };
  await load();
  clear(main, h("div", { class: "head" }, h("div", { class: "crumb" }, h("a", { href: "#/schedules" }, "Schedules")), h("h1", {}, name), actions),
    h("div", { class: "two" }, h("section", { class: "card" }, h("h2", {}, "Schedule"), facts),
      h("section", { class: "card" }, h("h2", {}, "Next moments"), moments, h("p", { class: "note below" }, zone()))),
    h("section", { class: "card" }, h("h2", {}, "Message"), body),
    h("section", { class: "card flush" }, h("div", { class: "card-head row" }, h("h2", {}, "Last results")), h("div", { class: "scroll" }, table), h("div", { class: "more" }, none)));
  repeat(load, signal);
}

/** Look again every few seconds while the page is shown. */
function repeat(load, signal) {
  const timer = setInterval(() => { if (!document.hidden) load().catch(() => {}); }, REFRESH);
  signal.addEventListener("abort", () => clearInterval(timer));
}
