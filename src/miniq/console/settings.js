// The settings of a queue as a form; only changed settings are sent.
import { field, h } from "./dom.js";

const SETTINGS = [
  ["visibility_timeout", "Visibility timeout (seconds)", 30],
  ["max_receives", "Max receives", 20, "no limit"],
  ["dead_letter_queue", "Dead-letter queue", null, "NAME.dead"],
  ["retention", "Retention (seconds)", 1209600],
  ["delay", "Default delay (seconds)", 0],
  ["dedup_window", "Dedup window (seconds)", 300],
  ["max_length", "Max messages (0: no limit)", 0],
  ["max_bytes", "Max bytes (0: no limit)", 0],
  ["max_in_flight", "Max in flight (0: no limit)", 0],
  ["rate", "Max messages per second (0: no limit)", 0],
  ["results", "Keep results (seconds, 0: not at all)", 0],
  ["claim_retention", "Claim retention (seconds)", 3600],
];
const RETRY = [
  ["delay", "Retry after (seconds)", 1],
  ["factor", "Retry factor per failure", 2],
  ["max", "Longest retry (seconds)", 3600],
  ["jitter", "Retry jitter (0 to 1)", 0.1],
];
// Settings that are false or true, with the text of each.
const FLAGS = [
  ["paused", "Paused", "no", "yes: messages wait"],
  ["group_batch", "Messages of a group per receive", "one", "several, in order"],
];

const defaults = (rows) => Object.fromEntries(rows.map(([name, , value]) => [name, value]));

/** A settings form; for a new queue (`settings` is null) it shows the defaults. */
export function settingsForm(settings, disabled = false) {
  const given = settings ?? { ...defaults(SETTINGS), retry: defaults(RETRY) };
  const inputs = {};
  const known = SETTINGS.filter(([name]) => settings === null ? name !== "claim_retention" : name in given);
  const nodes = known.map(([name, label, , placeholder]) => {
    const text = name === "dead_letter_queue";
    inputs[name] = h("input", { name, type: text ? "text" : "number", min: text ? undefined : 0, step: text ? undefined : "any",
      value: given[name] ?? "", placeholder, disabled, autocomplete: "off" });
    return field(label, inputs[name]);
  });
  const waits = {};
  const waitNodes = RETRY.filter(([name]) => given.retry && name in given.retry).map(([name, label]) => {
    waits[name] = h("input", { name: `retry.${name}`, type: "number", min: 0, step: "any", value: given.retry[name], disabled, autocomplete: "off" });
    return field(label, waits[name]);
  });
  const flags = {};
  const flagNodes = FLAGS.map(([name, label, no, yes]) => {
    flags[name] = h("select", { name, disabled }, [["", no], ["yes", yes]].map(([value, text]) =>
      h("option", { value, selected: Boolean(value) === Boolean(given[name]) }, text)));
    return field(label, flags[name]);
  });
  inputs.history = h("select", { name: "history", disabled }, ["off", "events", "full"].map((one) =>
    h("option", { value: one, selected: one === (given.history ?? "off") }, { off: "off", events: "events", full: "events and bodies" }[one])));
  return {
    node: h("div", { class: "fields" }, nodes, waitNodes, flagNodes, field("History", inputs.history)),
    changes() {
      const changes = {};
      for (const [name, input] of Object.entries(inputs)) {
        const text = input.value.trim();
        const value = name === "history" ? text : name === "dead_letter_queue" ? text || null : text === "" ? null : Number(text);
        if (value !== (given[name] ?? (name === "history" ? "off" : null))) changes[name] = value;
      }
      const policy = Object.fromEntries(Object.entries(waits).map(([name, input]) => [name, Number(input.value)]).filter(([name, value]) => value !== given.retry[name]));
      if (Object.keys(policy).length) changes.retry = policy;
      for (const [name, input] of Object.entries(flags)) if (Boolean(input.value) !== Boolean(given[name])) changes[name] = Boolean(input.value);
      return changes;
    },
  };
}
