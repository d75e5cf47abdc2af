// Sparklines for rows and charts for pages. Values are ordered oldest first; the last one is now.
import { h, s, say, rate, count, duration, hourAndMinute, now } from "./dom.js";

const [WIDTH, HEIGHT] = [600, 150]; // of a chart, in the units of its paths
const HOUR = 3600;

const path = (values, width, height, top, slots) => {
  const step = width / Math.max(1, slots - 1);
  const left = width - step * (values.length - 1);
  return values.map((value, place) =>
    `${place ? "L" : "M"}${(left + place * step).toFixed(1)} ${(height - (value / top) * height).toFixed(1)}`).join("");
};

/** A sparkline of the last hour, or of the time since the first value; `show` redraws it. */
export function spark(label) {
  const line = s("path");
  const area = s("path", { class: "fill" });
  const node = s("svg", { class: "spark", viewBox: "0 0 110 24", preserveAspectRatio: "none", role: "img", "aria-label": `${label} over the last hour` }, area, line);
  node.show = (given) => {
    const values = given.length > 1 ? given : [given[0], given[0]];
    const drawn = path(values, 110, 22, Math.max(1, ...values), values.length);
    line.setAttribute("d", drawn);
    area.setAttribute("d", `${drawn}L110 24L0 24Z`);
  };
  return node;
}

/** The next larger number that makes good ticks: 1, 2, 4, 5 or 10 times a power of ten. */
function ceiling(value, whole) {
  if (value <= (whole ? 2 : 0)) return whole ? 2 : 1;
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-3)));
  return [1, 2, 4, 5, 10].map((digit) => digit * power).find((top) => top >= value) ?? 10 * power;
}

const FEWEST = 20;

/** Several series over up to the last hour; a pointer or the arrow keys read single moments. The live values are the last
 * point of counts. Rates end with the last interval that is over: one that has only begun would look like a drop. */
export class Chart {
  #slots; #seconds; #lines; #ticks; #times; #past; #live = null; #numbers; #shown; #names; #whole; #cursor; #tip; #at = null; #svg;

  constructor(title, unit, names, slots, seconds, kind = "count") {
    this.#slots = slots;
    this.#seconds = seconds;
    this.#names = names;
    this.#whole = kind === "count";
    this.#shown = kind === "rate" ? rate : count;
    this.#past = names.map(() => []);
    this.#lines = names.map((name, place) => s("path", { class: `s${place}` }));
    this.#numbers = names.map(() => h("b", {}, ""));
    this.#ticks = [0, 0.5, 1].map(() => h("span"));
    this.#times = [0, 1, 2, 3, 4].map(() => h("span"));
    this.#cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.#tip = h("div", { class: "tip", hidden: true });
    const grid = [0, 0.5, 1].map((y) => s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * y, y2: HEIGHT * y }));
    this.#svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, ${unit}, over the last hour` }, grid, this.#lines, this.#cursor);
    const area = h("div", { class: "area", tabIndex: 0, role: "group", "aria-label": `${title}: arrow keys read values`,
      onpointermove: (event) => { const box = area.getBoundingClientRect(); this.#read((event.clientX - box.left) / box.width); },
      onpointerleave: () => this.#read(null), onblur: () => this.#read(null),
      onkeydown: (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const last = this.#count() - 1;
        this.#read(Math.max(0, Math.min(last, (this.#at ?? last - Math.min(step, 0)) + step)) / Math.max(1, last));
      } }, this.#svg, this.#tip);
    this.node = h("section", { class: "card chart" },
      h("h2", {}, title, " ", h("small", {}, unit)),
      h("div", { class: "legend" }, names.map((name, place) => h("span", { class: `s${place}` }, h("i"), name, " ", this.#numbers[place]))),
      h("div", { class: "plot" }, h("div", { class: "ticks", "aria-hidden": "true" }, [...this.#ticks].reverse()), area),
      h("div", { class: "axis", "aria-hidden": "true" }, this.#times), h("p", { class: "visually-hidden", role: "status" }));
  }

  /** Replace the values of the past: one for each interval that is over, oldest first. */
  set(series) { this.#past = series.map((values) => values.slice(Number(this.#whole) - this.#slots)); this.#draw(); }
  /** The current values. */
  live(values) { this.#live = values; this.#draw(); }

  get #series() { return this.#past.map((values, place) => (this.#live && this.#whole ? [...values, this.#live[place]] : values)); }
  #count() { return Math.max(FEWEST, this.#series[0].length); }

  #draw() {
    const series = this.#series;
    const top = ceiling(Math.max(...series.flat(), 0), this.#whole);
    const slots = this.#count();
    const span = (slots - 1) * this.#seconds * 1000;
    this.#times.forEach((node, place) => say(node, place === 4 ? "now" : hourAndMinute(now() - span * (1 - place / 4))));
    this.#ticks.forEach((node, place) => say(node, this.#whole || top > 10 ? count((top * place) / 2) : String(Number(((top * place) / 2).toPrecision(2)))));
    series.forEach((values, place) => {
      const drawn = values.length === 1 ? [values[0], values[0]] : values;
      this.#lines[place].setAttribute("d", drawn.length ? path(drawn, WIDTH, HEIGHT, top, slots) : "");
      say(this.#numbers[place], this.#live ? this.#shown(this.#live[place]) : "");
    });
  }

  /** Show the values at a place from 0 to 1, or none. */
  #read(x) {
    const last = this.#count() - 1;
    const series = this.#series;
    const known = series[0].length;
    this.#at = x === null ? null : Math.round(Math.max(0, Math.min(1, x)) * last);
    const back = last - (this.#at ?? 0);
    const hidden = this.#at === null || back >= known;
    this.#tip.hidden = hidden;
    this.#cursor.setAttribute("visibility", hidden ? "hidden" : "visible");
    if (hidden) return;
    const share = this.#at / last;
    for (const end of ["x1", "x2"]) this.#cursor.setAttribute(end, share * WIDTH);
    const ago = back * this.#seconds;
    const values = this.#names.map((name, place) => `${name} ${this.#shown(series[place].at(-1 - back) ?? 0)}`);
    const text = `${ago ? `${hourAndMinute(now() - ago * 1000)}, ${duration(Math.min(ago, HOUR))} ago` : this.#whole ? "now" : `last ${this.#seconds} s`}: ${values.join(", ")}`;
    say(this.#tip, text);
    say(this.node.lastChild, document.activeElement === this.#svg.parentNode ? text : "");
    this.#tip.className = share > 0.5 ? "tip left" : "tip";
    this.#tip.style.left = `${(share * 100).toFixed(1)}%`;
  }
}
