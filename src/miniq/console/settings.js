// The settings of a queue as a form; only changed settings are sent.
import { field, h } from "./dom.js";

const UNITS = { ms: 0.001, s: 1, min: 60, h: 3600, d: 86400 };

/** Seconds as they are written: 14 d, 90 s, 1.5 h, in the largest unit that is exact. */
export function written(seconds) {
  if (typeof seconds !== "number") return "";
  const [unit, size] = Object.entries(UNITS).reverse().find(([, size]) => seconds >= size && Number.isInteger(seconds / size)) ?? ["s", 1];
  return `${seconds / size} ${unit}`;
}

/** The seconds of such a text; a number alone is seconds. */
export function seconds(text, label) {
  const match = text.trim().match(/^([\d.]+)\s*(ms|s|min|h|d)?$/);
  if (!match || Number.isNaN(Number(match[1]))) throw new Error(`${label}: "${text}" is no duration; use a number with ms, s, min, h or d, such as 90 s or 14 d.`);
  return Number((Number(match[1]) * UNITS[match[2] ?? "s"]).toPrecision(12));
}

const SETTINGS = [
  ["visibility_timeout", "Visibility timeout", 30],
  ["max_receives", "Max receives", 20, "no limit"],
  ["dead_letter_queue", "Dead-letter queue", null, "NAME.dead"],
  ["retention", "Retention", 1209600],
  ["delay", "Default delay", 0],
  ["dedup_window", "Dedup window", 300],
  ["max_length", "Max messages (0: no limit)", 0],
  ["max_bytes", "Max bytes (0: no limit)", 0],
  ["max_in_flight", "Max in flight (0: no limit)", 0],
  ["rate", "Max messages per second (0: no limit)", 0],
  ["results", "Keep results (0: not at all)", 0],
  ["claim_retention", "Claim retention", 3600],
];
const RETRY = [
  ["delay", "Retry after", 1],
  ["factor", "Retry factor per failure", 2],
  ["max", "Longest retry", 3600],
  ["jitter", "Retry jitter (0 to 1)", 0.1],
];
const DURATIONS = new Set(["visibility_timeout", "retention", "delay", "dedup_window", "results", "claim_retention", "retry.delay", "retry.max"]);
// Settings that are false or true, with the text of each.
const FLAGS = [
  ["paused", "Paused", "no", "yes: messages wait"],
  ["group_batch", "Messages of a group per receive", "one", "several, in order"],
];

const LABELS = Object.fromEntries([...SETTINGS, ...RETRY.map(([name, label]) => [`retry.${name}`, label])].map(([name, label]) => [name, label]));
const defaults = (rows) => Object.fromEntries(rows.map(([name, , value]) => [name, value]));

/** A settings form; for a new queue (`settings` is null) it shows the defaults. */
export function settingsForm(settings, disabled = false) {
  const given = settings ?? { ...defaults(SETTINGS), retry: defaults(RETRY) };
  const inputs = {};
  const known = SETTINGS.filter(([name]) => settings === null ? name !== "claim_retention" : name in given);
  const nodes = known.map(([name, label, , placeholder]) => {
    const text = name === "dead_letter_queue";
    inputs[name] = DURATIONS.has(name) ? h("input", { name, value: written(given[name]), disabled, autocomplete: "off" })
      : h("input", { name, type: text ? "text" : "number", min: text ? undefined : 0, step: text ? undefined : "any", value: given[name] ?? "", placeholder, disabled, autocomplete: "off" });
    return field(label, inputs[name]);
  });
  const waits = {};
  const waitNodes = RETRY.filter(([name]) => given.retry && name in given.retry).map(([name, label]) => {
    const timed = DURATIONS.has(`retry.${name}`);
    waits[name] = h("input", { name: `retry.${name}`, type: timed ? "text" : "number", min: timed ? undefined : 0, step: timed ? undefined : "any", value: timed ? written(given.retry[name]) : given.retry[name], disabled, autocomplete: "off" });
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
        const value = name === "history" ? text : name === "dead_letter_queue" ? text || null : text === "" ? null : DURATIONS.has(name) ? seconds(text, LABELS[name]) : Number(text);
        if (value !== (given[name] ?? (name === "history" ? "off" : null))) changes[name] = value;
      }
      const policy = Object.fromEntries(Object.entries(waits).map(([name, input]) => [name, DURATIONS.has(`retry.${name}`) ? seconds(input.value, LABELS[`retry.${name}`]) : Number(input.value)]).filter(([name, value]) => value !== given.retry[name]));
      if (Object.keys(policy).length) changes.retry = policy;
      for (const [name, input] of Object.entries(flags)) if (Boolean(input.value) !== Boolean(given[name])) changes[name] = Boolean(input.value);
      return changes;
    },
  };
}
