// Who consumes a queue, and how long its messages wait and are processed.
import { api, live } from "./api.js";
import { age, brief, clear, count, exact, h, plural, say } from "./dom.js";

const ROW_STEP = 100; // rows that are drawn, and that "Show more" adds
const MEANING = { wait: "From the moment a message is ready to its first receive", processing: "From a receive to its ack or fail" };
const HEADS = [["Consumer", "name"], ["In-flight", "num"], ["Acked", "num"], ["Failed", "num"], ["Last seen", "num"]];

/** The consumers of a queue, and how long its messages wait and are processed: a card that stands next to the charts. */
export class ConsumerCard {
  #loading = false;
  #limit = ROW_STEP;

  constructor(queue, signal) {
    this.queue = queue;
    this.signal = signal;
    this.number = h("b", {}, "");
    this.times = Object.keys(MEANING).map((name) => [name, ["p50", "p99"].map((share) => [share, h("b", {}, "–")])]);
    this.body = h("tbody");
    this.foot = h("p", { class: "note" }, "Loading…");
    this.table = h("table", { class: "tight", hidden: true }, h("caption", { class: "visually-hidden" }, `Consumers of ${queue}`),
      h("thead", {}, h("tr", {}, HEADS.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))), this.body);
    this.node = h("section", { class: "card consumers" }, h("h2", {}, "Consumers ", this.number, " ", h("small", {}, "seen in the last five minutes")),
      h("dl", { class: "times" }, this.times.map(([name, shares]) => h("div", { title: `${MEANING[name]}, last five minutes` }, h("dt", {}, name), shares.map(([share, value]) => h("dd", {}, `${share} `, value))))),
      h("div", { class: "list", tabIndex: 0, role: "region", "aria-label": "List of consumers" }, this.table, this.foot));
    live.addEventListener("stats", () => { if (!document.hidden) this.load(); }, { signal });
  }

  /** Update the times and the number of consumers from a queue's live numbers. */
  show(queue) {
    say(this.number, exact(queue.consumers));
    for (const [name, shares] of this.times) {
      for (const [share, node] of shares) {
        const seconds = queue[name]?.[share];
        say(node, typeof seconds === "number" ? brief(seconds) : "–");
      }
    }
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
      !consumers.length && (problem ?? "No consumer in the last five minutes."));
    this.foot.hidden = !this.foot.childNodes.length;
  }
}

const number = (value, bad = false, title = "") => h("td", { class: `num${value ? (bad ? " bad" : "") : " zero"}`, title }, count(value));

const row = ({ name, in_flight, received, acked, failed, last_seen }) => h("tr", {},
  h("td", { class: "name", title: name ?? "" }, name === null ? "unnamed" : h("bdi", {}, name)),
  number(in_flight, false, `of ${plural(received, "message")} received since the broker first saw this consumer`), number(acked), number(failed, true),
  h("td", { class: "num" }, h("time", { dateTime: last_seen, title: last_seen }, `${age(last_seen)} ago`)));
