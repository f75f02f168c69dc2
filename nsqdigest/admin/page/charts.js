// Small charts of the last quarter of an hour, drawn as SVG.

import { h } from "./dom.js";
import { duration } from "./words.js";

const WIDTH = 300;
const HEIGHT = 56;
const OWN_LEAST = 5;
const ROUND = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

/** `series`: {title, values, kind}, all of one length, the newest value last; `show` writes a value with its unit. One
 * that is of another kind (`isOnItsOwn`) has a scale of its own.
 * The first series is filled, the second is a dashed line, so that they differ without colour, too. */
export function chart(title, series, intervalS, show) {
  const length = series[0].values.length;
  const span = duration(length * intervalS);
  const highest = Math.max(0, ...series.flatMap(({ values, isOnItsOwn }) => (isOnItsOwn ? [] : values)));
  const top = roundUp(highest);
  const newest = series.map(({ title: of, values }) => `${of} ${show(values.at(-1) ?? 0)}`).join(", ");
  return h(
    "figure",
    { class: "chart", key: title },
    h("figcaption", null, title),
    h(
      "p",
      { class: "figures" },
      series.map(({ title: of, values, kind }, place) =>
        h(
          "span",
          { class: place ? "second" : "first", key: of },
          h("b", null, show(values.at(-1) ?? 0)),
          h("span", { class: `legend ${kind} ${place ? "dashed" : ""}` }, of),
        ),
      ),
    ),
    h(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${title}: now ${newest}; highest in ${span}: ${show(highest)}`,
      },
      h("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }),
      series.map(({ values, kind, isOnItsOwn }, place) =>
        drawn(values, isOnItsOwn ? Math.max(OWN_LEAST, ...values) : top, kind, place === 0),
      ),
    ),
    h(
      "p",
      { class: "axis-words" },
      h("span", null, length > 1 ? `${span} ago` : "begins now"),
      h("span", null, `highest ${show(highest)}`),
      h("span", null, "now"),
    ),
  );
}

function drawn(given, top, kind, isFilled) {
  const values = given.length === 1 ? [...given, ...given] : given;
  const step = WIDTH / (values.length - 1);
  const points = values.map((value, place) => {
    const y = HEIGHT - 1 - (Math.max(0, value) / top) * (HEIGHT - 5);
    return `${(place * step).toFixed(1)},${y.toFixed(1)}`;
  });
  const area = `M0,${HEIGHT} L${points.join(" L")} L${WIDTH},${HEIGHT} Z`;
  return [
    isFilled && h("path", { class: `area ${kind}`, d: area }),
    h("polyline", {
      class: `curve ${kind}${isFilled ? "" : " dashed"}`,
      points: points.join(" "),
      "vector-effect": "non-scaling-stroke",
    }),
  ];
}

/** The top of the scale: a round number, so that it does not jump with each value. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return ROUND.find((each) => each * unit >= value * 0.999) * unit;
}
