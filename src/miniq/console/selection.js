// Messages that are selected by their boxes, and what can be done with all of them.
import { api } from "./api.js";
import { each, exact, h, plural } from "./dom.js";
import { confirm, toast } from "./dialogs.js";
import { redrive, steps } from "./redrive.js";

/** The selected messages of a queue; `changed` is called after every change of the selection, `done` after an action. */
export class Selection {
  constructor(queue, { changed = () => {}, done = () => {}, dead = false } = {}) {
    Object.assign(this, { queue, changed, done });
    this.ids = new Set();
    this.redriveButton = dead && h("button", { type: "button", class: "main", onclick: () => this.redrive([...this.ids]) });
    this.discardButton = h("button", { type: "button", class: "bad", onclick: () => this.discard([...this.ids]) });
    this.node = h("div", { class: "row", role: "group", "aria-label": "Selected messages" }, this.redriveButton, this.discardButton);
    this.show();
  }

  /** A box that selects some messages. */
  box(label, ids) {
    const box = h("input", { type: "checkbox", "aria-label": label, onchange: () => {
      for (const id of ids()) if (box.checked) this.ids.add(id); else this.ids.delete(id);
      this.show();
    } });
    return box;
  }

  clear() { this.ids.clear(); this.show(); }

  show() {
    const what = this.ids.size ? plural(this.ids.size, "message") : "selected";
    for (const [button, verb] of [[this.redriveButton, "Redrive"], [this.discardButton, "Discard"]]) {
      if (!button) continue;
      button.textContent = `${verb} ${what}`;
      button.disabled = !this.ids.size;
    }
    this.changed();
  }

  redrive(ids) { return this.redriveSome(ids.length, steps(ids)); }
  discard(ids) { return this.discardSome(ids.length, steps(ids, 100)); }

  /** Redrive the messages that `some` yields; `what` is their number, or words. */
  async redriveSome(what, some) { if (await redrive(this.queue, what, some)) this.done(); }

  async discardSome(what, some) {
    const total = { done: 0, failed: 0, error: null };
    const submit = async (tell, signal) => {
      for await (const { ids, looked } of some(signal)) {
        const failed = await each(ids, (id) => (signal.aborted ? null : api.remove(this.queue, id).then(() => { total.done += 1; })));
        total.failed += failed.count;
        total.error ??= failed.error;
        if (signal.aborted) break;
        tell(`Discarded ${exact(total.done)}${looked ? ` of ${plural(looked, "message")} looked at` : ""}…`);
      }
      if (total.failed) toast(`${plural(total.failed, "message")} not discarded: ${total.error.message}`, true);
      if (total.done || signal.aborted) toast(`${signal.aborted ? "Stopped. " : ""}Discarded ${plural(total.done, "message")}.`);
    };
    const title = `Discard ${typeof what === "number" ? plural(what, "message") : what}?`;
    if (await confirm({ title, text: "They are removed without being processed. This can't be undone.", action: "Discard", submit })) this.done();
  }
}
