// Redrive: dead letters move back to their queues, or to another one, at once or at a rate.
import { api, sleep } from "./api.js";
import { field, h, plural } from "./dom.js";
import { ask, toast } from "./dialogs.js";

const MOST = 1000; // ids of one call

/** Ask for the redrive options, then redrive the whole queue or only `ids`. */
export function redrive(name, amount, ids) {
  const to = h("input", { autocomplete: "off", placeholder: "source queue" });
  const speed = h("input", { type: "number", min: 0, step: "any", placeholder: "no limit" });
  return ask({
    title: `Redrive ${plural(amount, "message")}?`, action: "Redrive",
    body: [h("p", { class: "note" }, "Messages return to their source queue, and their receive count restarts at 0."),
      h("div", { class: "fields" }, field("Destination queue", to), field("Max messages per second", speed))],
    submit: async () => {
      const body = {};
      if (to.value.trim()) body.to = to.value.trim();
      if (speed.value.trim()) body.rate = Number(speed.value);
      const done = await (ids ? some(name, ids, body) : api.redrive(name, body));
      toast(done.running ? "Redrive started." : `Moved ${plural(done.moved, "message")}${done.skipped ? `, skipped ${done.skipped}` : ""}.`);
      return done;
    },
  });
}

/** Redrive these messages, a call for every thousand; with a rate, one call after the other has done its work. */
async function some(name, ids, body) {
  const total = { moved: 0, skipped: 0, running: false };
  for (let start = 0; start < ids.length; start += MOST) {
    let done = await api.redrive(name, { ...body, ids: ids.slice(start, start + MOST) });
    const last = start + MOST >= ids.length;
    while (done.running && !last) { await sleep(500); done = (await api.queue(name)).redrive ?? { moved: 0, skipped: 0 }; }
    total.moved += done.moved; total.skipped += done.skipped; total.running = Boolean(done.running);
  }
  return total;
}
