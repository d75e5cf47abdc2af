// A paged list of messages: browse by state, or search in bounded steps.
import { api } from "./api.js";
import { age, badge, clear, exact, firstLine, h, holder, messageLink, plural, preview, stateLabel, until } from "./dom.js";

const PAGE = 50;

/** One row of a list of messages. */
export function messageRow(queue, message, first = null) {
  return h("tr", {},
    first,
    h("td", { class: "cut", "data-label": "Message" }, h("a", { href: messageLink(queue, message.id), title: message.id },
      h("bdi", {}, preview(message)))),
    h("td", { class: "bare" }, badge(stateLabel(message.status), message.status)),
    h("td", { class: "num", "data-label": "Priority" }, String(message.priority)),
    h("td", { class: "num", "data-label": "Receives" }, exact(message.dead?.receives ?? message.receives)),
    h("td", { class: "num", "data-label": "Age" }, age(message.sent_at)),
    h("td", { class: "wide-only" }, message.status === "leased" ? holder(message)
      : message.status === "delayed" ? `ready ${until(message.visible_at)}${message.error ? `, failed: ${firstLine(message.error)}` : ""}`
      : message.error ? `failed: ${firstLine(message.error)}` : message.dead ? `dead-lettered ${age(message.dead.at)} ago` : message.key ? `key ${message.key}` : ""));
}

export const messageHead = (first = null) => h("thead", {}, h("tr", {}, first,
  ["Message", "State", "Priority", "Receives", "Age", "Details"].map((text, place) =>
    h("th", { scope: "col", class: place > 1 && place < 5 ? "num" : place === 5 ? "wide-only" : "" }, text))));

/** The messages of a queue in one state, or those that match a search. `nothing` renders the empty state. */
export class MessageList {
  constructor(queue, signal, nothing) {
    this.queue = queue;
    this.signal = signal;
    this.nothing = nothing;
    this.status = "";
    this.find = "";
    this.body = h("tbody");
    this.foot = h("div", { class: "more" });
    this.table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, `Messages in ${queue}`), messageHead(), this.body);
    this.node = h("div", { class: "card flush" }, h("div", { class: "scroll" }, this.table), this.foot);
    this.run = 0;
  }

  /** Start over with this state and search text. */
  async show(status = this.status, find = this.find) {
    Object.assign(this, { status, find });
    this.after = undefined;
    this.looked = 0;
    this.found = 0;
    clear(this.body);
    await this.more();
  }

  async more() {
    const run = ++this.run;
    const stop = h("button", { type: "button", onclick: () => { this.run += 1; this.#end(); } }, "Stop");
    const progress = h("span", { class: "note" }, this.find ? "Searching…" : "Loading…");
    clear(this.foot, progress, " ", this.find && stop);
    this.table.hidden = false;
    let got = 0;
    do {
      const page = await api.peek(this.queue, { status: this.status, find: this.find, after: this.after, limit: PAGE - got }, this.signal);
      if (run !== this.run || this.signal.aborted) return;
      this.body.append(...page.messages.map((message) => messageRow(this.queue, message)));
      got += page.messages.length;
      this.found += page.messages.length;
      this.looked += page.looked ?? page.messages.length;
      this.after = page.next;
      if (this.find) progress.textContent = `Scanned ${exact(this.looked)}, found ${exact(this.found)}…`;
    } while (this.find && this.after && got < PAGE);
    this.#end();
  }

  #end() {
    const more = this.after && h("button", { type: "button", onclick: () => this.more() }, this.find ? "Keep searching" : "Show more");
    const summary = this.find && h("span", { class: "note" }, `Found ${plural(this.found, "message")} in ${exact(this.looked)} scanned. `);
    this.table.hidden = !this.found;
    clear(this.foot, summary, more, !this.found && !this.find && this.nothing(this.status));
    this.foot.hidden = !this.foot.childNodes.length;
  }
}
