// Redrive: dead letters move back to their queues, or to another one, at once or at a rate.
import { api, sleep } from "./api.js";
import { exact, field, h, plural } from "./dom.js";
import { ask, toast } from "./dialogs.js";

const STEP = 500; // ids of one call

/** Known ids, in steps; `looked` counts messages only where they have to be looked for. */
export const steps = (ids, size = STEP) => async function* inSteps() {
  for (let start = 0; start < ids.length; start += size) yield { ids: ids.slice(start, start + size) };
};

/** Ask for the redrive options, then redrive the whole queue or only the messages that `some` yields. */
export function redrive(name, what, some) {
  const to = h("input", { autocomplete: "off", placeholder: "source queue" });
  const speed = h("input", { type: "number", min: 0, step: "any", placeholder: "no limit" });
  return ask({
    title: `Redrive ${typeof what === "number" ? plural(what, "message") : what}?`, action: "Redrive",
    body: [h("p", { class: "note" }, "Messages return to their source queue, and their receive count restarts at 0."),
      h("div", { class: "fields" }, field("Destination queue", to), field("Max messages per second", speed))],
    submit: async (tell, signal) => {
      const body = {};
      if (to.value.trim()) body.to = to.value.trim();
      if (speed.value.trim()) body.rate = Number(speed.value);
      const done = await (some ? inSteps(name, some, body, tell, signal) : api.redrive(name, body));
      const moved = `${plural(done.moved, "message")}${done.skipped ? `, skipped ${exact(done.skipped)}` : ""}.`;
      toast(signal.aborted ? `Stopped. Moved ${moved}` : done.running ? "Redrive started." : `Moved ${moved}`);
      return done;
    },
  });
}

/** Redrive in steps. At a rate, each step waits for the one before, since a new redrive replaces one that runs; the last
 * one goes on at the broker. */
async function inSteps(name, some, body, tell, signal) {
  const total = { moved: 0, skipped: 0, running: false };
  let before = null;
  const show = (moved, looked) => tell(`Moved ${exact(moved)}${looked ? ` of ${plural(looked, "message")} looked at` : ""}…`);
  const count = (done) => { total.moved += done.moved; total.skipped += done.skipped; };
  for await (const { ids, looked } of some(signal)) {
    while (before?.running && ids.length && !signal.aborted) {
      await sleep(500);
      before = (await api.queue(name)).redrive ?? { moved: 0, skipped: 0, running: false };
      show(total.moved + before.moved, looked);
    }
    if (signal.aborted) break;
    if (ids.length) {
      if (before) count(before);
      before = await api.redrive(name, { ...body, ids });
    }
    show(total.moved + (before?.moved ?? 0), looked);
  }
  if (before) count(before);
  total.running = Boolean(before?.running);
  return total;
}
