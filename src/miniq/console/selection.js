// Messages that are selected by their boxes, and what can be done with all of them.
import { api } from "./api.js";
import { each, h, plural } from "./dom.js";
import { confirm, toast } from "./dialogs.js";
import { redrive } from "./redrive.js";

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

  async redrive(ids) { if (await redrive(this.queue, ids.length, ids)) this.done(); }

  async discard(ids) {
    let failed;
    const text = "They are removed without being processed. This can't be undone.";
    if (await confirm({ title: `Discard ${plural(ids.length, "message")}?`, text, action: "Discard",
      submit: async () => { failed = await each(ids, (id) => api.remove(this.queue, id)); return true; } })) {
      if (failed.count) toast(`${plural(failed.count, "message")} not discarded: ${failed.error.message}`, true);
      if (failed.count < ids.length) toast(`Discarded ${plural(ids.length - failed.count, "message")}.`);
      this.done();
    }
  }
}
