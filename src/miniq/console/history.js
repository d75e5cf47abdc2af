// Search the history, newest first.
import { api, live } from "./api.js";
import { brief, clear, curl, day, empty, encode, field, firstLine, h, isKeyed, isoTime, messageLink, plural, python, queueLink, timeOfDay } from "./dom.js";
import { attempt } from "./dialogs.js";

const EVENTS = ["sent", "received", "acked", "released", "failed", "expired", "dead", "edited", "purged", "redriven", "published"];
const WINDOW = 5000;
const PAGE = 100;

export async function historyPage(main, { query, signal, identity }) {
  const keyed = isKeyed(identity);
  document.title = "History · MiniQ";
  const inputs = {
    queue: h("input", { list: "queues", autocomplete: "off", value: query.get("queue") ?? "", class: "search" }),
    event: h("select", {}, h("option", { value: "" }, "any"), EVENTS.map((value) => h("option", { value, selected: value === query.get("event") }, value))),
    id: h("input", { autocomplete: "off", spellcheck: false, value: query.get("id") ?? "" }),
    consumer: h("input", { autocomplete: "off", value: query.get("consumer") ?? "" }),
    since: h("input", { type: "datetime-local", step: 1, value: query.get("since") ?? "" }),
  };
  const body = h("tbody");
  const table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "Events"), h("thead", {}, h("tr", {},
    ["Time", "Event", "Queue", "Message", "Consumer", "Waited", "Held", "Reason"].map((text) => h("th", { scope: "col" }, text)))), body);
  const foot = h("div", { class: "more" });
  const form = h("form", { class: "card filters", onsubmit: (event) => {
    event.preventDefault();
    const given = Object.entries(inputs).map(([name, input]) => [name, input.value.trim()]).filter(([, value]) => value);
    history.replaceState(null, "", `#/history${given.length ? `?${new URLSearchParams(given)}` : ""}`);
    attempt(begin);
  } }, h("div", { class: "fields" }, field("Queue", inputs.queue), field("Event", inputs.event), field("Message ID", inputs.id),
    field("Consumer", inputs.consumer), field("Since", inputs.since), h("button", { type: "submit", class: "main" }, "Search")),
  h("datalist", { id: "queues" }, [...live.queues.keys()].map((value) => h("option", { value }))));
  clear(main, h("div", { class: "head" }, h("h1", {}, "History")),
    h("p", { class: "note" }, "Queues with history turned on record every event of their messages."), form, h("div", { class: "card flush" }, h("div", { class: "scroll" }, table), foot));

  let cursor; // the range still to search: below this offset
  let floor; // and above this one
  let found;
  let asked;
  let date; // of the last row

  async function begin() {
    asked = Object.fromEntries(["queue", "event", "id", "consumer"].map((name) => [name, inputs[name].value.trim()]));
    clear(body);
    date = "";
    found = 0;
    const since = inputs.since.value && isoTime(inputs.since.value);
    // The range to search: from the first event since that time to the newest.
    const edge = await api.history({ limit: 1, queue: asked.queue, since }, signal);
    floor = since ? (edge.events.length ? edge.events[0].offset - 1 : edge.next) : edge.first - 1;
    cursor = edge.last + 1;
    await more();
  }

  async function more() {
    clear(foot, h("span", { class: "note" }, "Searching…"));
    let got = 0;
    for (let windows = 0; windows < 20 && got < PAGE && cursor - 1 > floor; windows += 1) {
      const events = [];
      let after = Math.max(floor, cursor - 1 - WINDOW);
      const next = after + 1;
      while (after < cursor - 1) {
        const page = await api.history({ ...asked, after, before: cursor, limit: 1000 }, signal);
        if (signal.aborted) return;
        events.push(...page.events);
        if (page.next <= after) break;
        after = page.next;
      }
      const rest = events.reverse().slice(0, PAGE - got);
      cursor = rest.length < events.length ? rest.at(-1).offset : next;
      body.append(...rest.flatMap(line));
      got += rest.length;
    }
    found += got;
    table.hidden = !found;
    const left = cursor - 1 > floor;
    clear(foot, found || left ? h("span", { class: "note" }, left ? "" : `${plural(found, "event")}. `)
      : empty("No events found", "If history is off, turn it on in the queue's settings or with:", curl(keyed, `/queues/${asked.queue || "emails"}`, { history: "events" }, "PUT"), python(keyed, `mq.queue("${asked.queue || "emails"}").configure(history="events")`)),
    left && h("button", { type: "button", onclick: () => attempt(more) }, "Show older"));
  }

  const time = (n) => (n === undefined ? "" : brief(n / 1000));
  /** A row for an event, under one with its date where that is another than before. */
  function line(event) {
    const own = day(event.at);
    const heading = own !== date && h("tr", { class: "date" }, h("th", { colSpan: 8, scope: "rowgroup" }, own));
    date = own;
    return [heading, row(event)].filter(Boolean);
  }
  /** The queue of an event, or the topic of a publication. */
  const source = ({ event, queue }) => (event === "published" ? ["topic ", h("a", { href: `#/topics/${encode(queue)}` }, queue)] : h("a", { href: queueLink(queue) }, queue));
  const message = ({ event, queue, id, count }) => (id && event !== "published" ? h("a", { href: messageLink(queue, id), title: id }, `…${id.slice(-12)}`) : plural(count ?? 1, "message"));
  const row = (event) => h("tr", { class: "event" },
    h("td", { class: "full" }, timeOfDay(event.at)),
    h("td", { "data-label": "Event", class: "spot" }, h("span", { class: event.event === "dead" ? "badge dead" : "badge" }, event.event)),
    h("td", { "data-label": "Queue", class: "spot" }, source(event)),
    h("td", { "data-label": "Message", class: "mono spot" }, message(event)),
    h("td", { "data-label": "Consumer", class: "spot" }, event.consumer && h("bdi", {}, event.consumer)), h("td", { "data-label": "Waited" }, time(event.wait_ms)),
    h("td", { "data-label": "Held" }, time(event.held_ms)), h("td", { "data-label": "Reason", class: "last" }, event.reason ?? "", event.error && h("bdi", {}, `${event.reason ? ": " : ""}${firstLine(event.error)}`)));

  await begin();
}
