// Sparklines for rows and charts for pages. Values are ordered oldest first; the last one is now.
import { h, s, say, rate, count, duration } from "./dom.js";

const path = (values, width, height, top, slots) => {
  const step = width / Math.max(1, slots - 1);
  const left = width - step * (values.length - 1);
  return values.map((value, place) =>
    `${place ? "L" : "M"}${(left + place * step).toFixed(1)} ${(height - (value / top) * height).toFixed(1)}`).join("");
};

/** A sparkline of the last hour; `show` redraws it. */
export function spark(label) {
  const line = s("path");
  const area = s("path", { class: "fill" });
  const node = s("svg", { class: "spark", viewBox: "0 0 110 24", preserveAspectRatio: "none", role: "img", "aria-label": label }, area, line);
  node.show = (values, slots) => {
    const top = Math.max(1, ...values);
    const drawn = values.length > 1 ? path(values, 110, 22, top, slots) : "";
    line.setAttribute("d", drawn);
    area.setAttribute("d", drawn ? `${drawn}L110 24L${(110 - (110 / (slots - 1)) * (values.length - 1)).toFixed(1)} 24Z` : "");
  };
  return node;
}

const FEWEST = 20;

/** Several series over up to the last hour, with new values appended. */
export class Chart {
  #slots; #seconds; #lines; #top; #begin; #series; #numbers; #shown;

  constructor(title, names, slots, seconds, kind = "count") {
    this.#slots = slots;
    this.#seconds = seconds;
    this.#shown = kind === "rate" ? rate : count;
    this.#series = names.map(() => []);
    this.#lines = names.map((name, place) => s("path", { class: `s${place}` }));
    this.#numbers = names.map(() => h("b", {}, ""));
    this.#top = h("span", { class: "top" });
    this.#begin = h("span");
    const grid = [0, 0.5, 1].map((y) => s("line", { class: "grid", x1: 0, x2: 600, y1: 150 * y, y2: 150 * y }));
    this.node = h("section", { class: "card chart" },
      h("div", { class: "legend" }, h("h2", {}, title),
        names.map((name, place) => h("span", { class: `s${place}` }, h("i"), name, " ", this.#numbers[place]))),
      h("div", { class: "plot" }, this.#top, s("svg", { viewBox: "0 0 600 150", preserveAspectRatio: "none", role: "img", "aria-label": `${title} over the last hour` }, grid, this.#lines)),
      h("div", { class: "axis", "aria-hidden": "true" }, this.#begin, h("span", {}, "now")));
  }

  /** Replace all series; the last point is now. */
  set(series) { this.#series = series.map((values) => [...values]); this.#draw(); }
  /** Append a point if `move` is set, otherwise replace the last one. */
  add(values, move) {
    this.#series.forEach((known, place) => {
      if (!move && known.length) known.pop();
      known.push(values[place]);
      if (known.length > this.#slots) known.shift();
    });
    this.#draw();
  }

  #draw() {
    const top = Math.max(1, ...this.#series.flat());
    const slots = Math.max(FEWEST, this.#series[0].length);
    say(this.#begin, `${duration((slots - 1) * this.#seconds)} ago`);
    this.#series.forEach((values, place) => {
      this.#lines[place].setAttribute("d", values.length > 1 ? path(values, 600, 150, top, slots) : "");
      say(this.#numbers[place], values.length ? this.#shown(values.at(-1)) : "");
    });
    say(this.#top, this.#shown(top));
  }
}
