// A paged list of messages: browse by state, or search in bounded steps.
import { api } from "./api.js";
import { age, badge, clear, exact, firstLine, h, holder, messageLink, plural, preview, previews, stateLabel, until } from "./dom.js";
import { Selection } from "./selection.js";
import { taskLine, taskOf } from "./tasks.js";

const PAGE = 50;

/** One row of a list of messages. */
function messageRow(queue, message, text = preview(message), first = null, last = null) {
  return h("tr", {}, first, nameCell(queue, message, text),
    h("td", { class: "bare" }, badge(stateLabel(message.status), message.status)),
    h("td", { class: message.priority ? "num" : "num zero", "data-label": "Priority" }, String(message.priority)),
    h("td", { class: message.receives ? "num" : "num zero", "data-label": "Receives" }, exact(message.receives)),
    h("td", { class: "num", "data-label": "Age" }, age(message.sent_at)),
    h("td", { class: "wide-only" }, where(message) || (message.error ? `failed: ${firstLine(message.error)}` : message.key ? `key ${message.key}` : "")), last);
}

/** What a row says of a dead letter; `error` is what is already said above the list. */
export function deadDetails(message, error = "") {
  const own = message.error ?? message.dead?.error;
  return where(message) || (own && firstLine(own) !== error ? firstLine(own) : "");
}

/** One row of a list of dead letters. */
export function deadRow(queue, message, text = preview(message), first = null, last = null, details = deadDetails(message)) {
  const died = message.dead?.at;
  return h("tr", {}, first, nameCell(queue, message, text),
    h("td", { class: "num", "data-label": "Receives" }, exact(message.dead?.receives ?? message.receives)),
    h("td", { class: "num", "data-label": "Died" }, died ? h("time", { dateTime: died, title: `died ${died}, sent ${message.sent_at}` }, `${age(died)} ago`) : "–"),
    details !== null && h("td", { class: "wide-only" }, details), last);
}

const nameCell = (queue, message, text) => h("td", { class: "cut", "data-label": "Message" }, h("a", { class: "mono", href: messageLink(queue, message.id), title: message.id },
  h("bdi", {}, taskOf(message) ? taskLine(taskOf(message)) : text)));

/** Where a message is that is not ready. */
const where = (message) => (message.status === "leased" ? holder(message)
  : message.status === "delayed" ? `ready ${until(message.visible_at)}${message.error ? `, failed: ${firstLine(message.error)}` : ""}` : "");

const head = (texts, first, last) => h("thead", {}, h("tr", {}, first, texts.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)), last));
const messageHead = (first = null, last = null) => head([["Message", ""], ["State", ""], ["Priority", "num"], ["Receives", "num"], ["Age", "num"], ["Details", "wide-only"]], first, last);
export const deadHead = (first = null, last = null, details = true) => head([["Message", ""], ["Receives", "num"], ["Died", "num"], ...(details ? [["Details", "wide-only"]] : [])], first, last);

/** The messages of a queue in one state, or those that match a search. `nothing` renders the empty state. */
export class MessageList {
  constructor(queue, signal, nothing, { manage = false, dead = false } = {}) {
    Object.assign(this, { queue, signal, nothing, row: dead ? deadRow : messageRow });
    this.selection = manage && new Selection(queue, { dead, done: () => this.show().catch(() => {}), changed: () => this.#selected() });
    this.boxes = [];
    this.all = this.selection && h("input", { type: "checkbox", "aria-label": "Select all messages shown", onchange: () => {
      for (const { box, id } of this.boxes) { box.checked = this.all.checked; if (box.checked) this.selection.ids.add(id); else this.selection.ids.delete(id); }
      this.selection.show();
    } });
    this.bar = h("div", { class: "card-head row", hidden: true }, this.selection?.node);
    this.status = "";
    this.find = "";
    this.body = h("tbody");
    this.foot = h("div", { class: "more" });
    this.table = h("table", { class: "cards inline" }, h("caption", { class: "visually-hidden" }, `Messages in ${queue}`), (dead ? deadHead : messageHead)(this.all && h("th", { scope: "col", class: "box" }, this.all)), this.body);
    this.node = h("div", { class: "card flush" }, this.bar, h("div", { class: "scroll" }, this.table), this.foot);
    this.run = 0;
  }

  /** Start over with this state and search text. */
  async show(status = this.status, find = this.find) {
    Object.assign(this, { status, find });
    this.after = undefined;
    this.looked = 0;
    this.found = 0;
    this.boxes = [];
    this.selection?.clear?.();
    clear(this.body);
    await this.more();
  }

  #selected() {
    if (!this.bar) return; // while it is made
    this.bar.hidden = !this.selection.ids.size;
    this.all.checked = this.boxes.length > 0 && this.boxes.every(({ id }) => this.selection.ids.has(id));
  }

  #row(message, text) {
    if (!this.selection) return this.row(this.queue, message, text);
    const box = this.selection.box(`Select ${message.id}`, () => [message.id]);
    this.boxes.push({ box, id: message.id });
    return this.row(this.queue, message, text, h("td", { class: "bare box" }, box));
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
      const texts = previews(page.messages);
      this.body.append(...page.messages.map((message, place) => this.#row(message, texts[place])));
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
