// Who consumes a queue, and how long its messages wait and are processed.
import { api, live } from "./api.js";
import { age, brief, clear, count, exact, h, plural, say, tile } from "./dom.js";

const ROW_STEP = 100; // rows that are drawn, and that "Show more" adds
const TIMES = [["wait", "p50"], ["wait", "p99"], ["processing", "p50"], ["processing", "p99"]];
const MEANING = { wait: "From the moment a message is ready to its first receive", processing: "From a receive to its ack or fail" };
const HEADS = [["Consumer", ""], ["In-flight", "num"], ["Received", "num"], ["Acked", "num"], ["Failed", "num"], ["Last seen", "num"]];

/** The times of the last five minutes; `show` updates them from a queue's live numbers. */
export class Times {
  constructor() {
    this.node = h("div", { class: "tiles", role: "group", "aria-label": "Times of the last five minutes" }, TIMES.map(([name, share]) => tile(`${name} ${share}`, "–")));
    TIMES.forEach(([name], place) => { this.node.children[place].title = `${MEANING[name]}, last five minutes`; });
  }

  show(queue) {
    TIMES.forEach(([name, share], place) => {
      const seconds = queue[name]?.[share];
      say(this.node.children[place].firstChild, typeof seconds === "number" ? brief(seconds) : "–");
    });
  }
}

/** The consumers of a queue, kept up to date while they are visible. */
export class ConsumerList {
  #loading = false;
  #limit = ROW_STEP;

  constructor(queue, signal) {
    this.queue = queue;
    this.signal = signal;
    this.body = h("tbody");
    this.foot = h("div", { class: "more" }, h("span", { class: "note" }, "Loading…"));
    this.table = h("table", { class: "cards", hidden: true }, h("caption", { class: "visually-hidden" }, `Consumers of ${queue}`),
      h("thead", {}, h("tr", {}, HEADS.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))), this.body);
    this.node = h("div", { hidden: true }, h("div", { class: "card flush" }, h("div", { class: "scroll" }, this.table), this.foot),
      h("p", { class: "note below" }, "Who received or asked for messages in the last five minutes, or holds some. Counts start when the broker first sees a consumer; the times above are of the last five minutes."));
    live.addEventListener("stats", () => { if (!this.node.hidden) this.load(); }, { signal });
  }

  async load() {
    if (this.#loading) return;
    this.#loading = true;
    try {
      const { consumers } = await api.consumers(this.queue, this.signal);
      if (!this.signal.aborted) this.#draw(consumers);
    } catch (error) {
      if (!this.signal.aborted) this.#draw([], error.message); // the next update tries again
    } finally {
      this.#loading = false;
    }
  }

  #draw(consumers, problem) {
    clear(this.body, consumers.slice(0, this.#limit).map(row));
    this.table.hidden = !consumers.length;
    const left = consumers.length - this.#limit;
    const more = () => { this.#limit += ROW_STEP; this.#draw(consumers); };
    clear(this.foot, left > 0 && h("button", { type: "button", onclick: more }, left > ROW_STEP ? `Show ${ROW_STEP} more of ${exact(left)} consumers` : `Show ${plural(left, "more consumer")}`),
      !consumers.length && h("span", { class: "note" }, problem ?? "No consumer in the last five minutes."));
    this.foot.hidden = !this.foot.childNodes.length;
  }
}

const number = (label, value, bad = false) => h("td", { class: `num${value ? (bad ? " bad" : "") : " zero"}`, "data-label": label }, count(value));

const row = (consumer) => h("tr", {},
  h("td", { class: "name full" }, consumer.name === null ? "unnamed" : h("bdi", {}, consumer.name)),
  number("In-flight", consumer.in_flight), number("Received", consumer.received), number("Acked", consumer.acked), number("Failed", consumer.failed, true),
  h("td", { class: "num last", "data-label": "Last seen" }, h("time", { dateTime: consumer.last_seen, title: consumer.last_seen }, `${age(consumer.last_seen)} ago`)));
