"use strict";
// Small drawings without a library: lines of the last minutes, shares, races, calibration.

const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

/** An element of a drawing; `text` is never read as markup. */
function drawn(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function written(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** "12.3", "4.56"; a dash where there is no number. */
function figure(value, digits = 2) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(0)} %`);

/** Values from left to right; null: nothing happened then, and the line has a gap. */
function drawLine(svg, values, most, label) {
  const width = 240, height = 44, step = width / (HISTORY - 1);
  const top = Math.max(most, ...values.map((value) => value ?? 0)) || 1;
  const x = (index) => width - (values.length - 1 - index) * step;
  const y = (value) => height - 1.5 - (value / top) * (height - 6);
  let stroke = "", area = "", begin = -1;
  values.forEach((value, index) => {
    if (value === null) return;
    const isFirst = index === 0 || values[index - 1] === null;
    const place = `${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    if (isFirst) begin = index;
    stroke += isFirst ? `M${place}` : `L${place}`;
    area += isFirst ? `M${x(index).toFixed(1)} ${height}L${place}` : `L${place}`;
    const isLast = index === values.length - 1 || values[index + 1] === null;
    if (isLast && begin === index) stroke += `l0.01 0`;  // one value alone: a dot
    if (isLast) area += `L${x(index).toFixed(1)} ${height}Z`;
  });
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(
    drawn("path", { class: "area", d: area }),
    drawn("path", { class: "stroke", d: stroke }),
  );
}

/** Counts by name as parts of one bar. */
function drawShares(svg, counts) {
  const all = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const parts = Object.entries(counts).filter(([, count]) => count);
  let left = 0;
  svg.setAttribute("viewBox", "0 0 100 7");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-label", parts.map(([name, count]) => `${count} ${name}`).join(", ") || "no tokens yet");
  svg.replaceChildren(...parts.map(([name, count]) => {
    const width = (100 * count) / all;
    left += width;
    return drawn("rect", { class: name, x: left - width, y: 0, width, height: 7 });
  }));
}

/** How long both runs took, on one scale, in seconds. */
function drawRace(svg, times) {
  const longest = Math.max(...times.map(([, , seconds]) => seconds));
  const width = svg.clientWidth || 480, room = width - 210;
  svg.setAttribute("viewBox", `0 0 ${width} 46`);
  svg.setAttribute("aria-label", times.map(([, words, seconds]) => `${words}: ${seconds.toFixed(2)} seconds`).join("; "));
  svg.replaceChildren(...times.flatMap(([name, words, seconds], index) => {
    const y = 3 + 23 * index, length = Math.max(2, (room * seconds) / longest);
    return [
      drawn("text", { x: 118, y: y + 13, "text-anchor": "end" }, words),
      drawn("rect", { class: name, x: 128, y: y + 1, width: length, height: 16, rx: 4 }),
      drawn("text", { x: 128 + length + 8, y: y + 13 }, `${seconds.toFixed(2)} s`),
    ];
  }));
}

/** Confidence beside acceptance of each position; bars: what was accepted of all blocks just now. */
function drawCalibration(svg, positions, rates) {
  const width = svg.clientWidth || 560, height = 190, left = 34, bottom = 24;
  const count = Math.max(positions.length, rates.length, 4);
  const step = (width - left - 8) / count;
  const x = (index) => left + step * (index + 0.5);
  const y = (value) => 8 + (1 - value) * (height - bottom - 8);
  const parts = [0, 0.5, 1].flatMap((value) => [
    drawn("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }),
    drawn("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(1)),
  ]);
  rates.forEach((rate, index) => {
    const size = { x: x(index) - step * 0.32, y: y(rate), width: step * 0.64, height: y(0) - y(rate) };
    parts.push(drawn("rect", { class: "rate", rx: 3, ...size }));
  });
  positions.forEach((each, index) => {
    if (!each.num_judged) return;
    const place = drawn("g", {});
    const [foreseen, found] = [y(each.mean_confidence), y(each.mean_acceptance)];
    place.append(
      drawn("line", { class: "gap", x1: x(index), x2: x(index), y1: foreseen, y2: found }),
      drawn("circle", { class: "confidence", cx: x(index), cy: foreseen, r: 5.5 }),
      drawn("circle", { class: "acceptance", cx: x(index), cy: found, r: 4.5 }),
      drawn("title", {}, calibrationWords(each, index)),
    );
    parts.push(place);
  });
  for (let index = 0; index < count; index++) {
    parts.push(drawn("text", { x: x(index), y: height - 6, "text-anchor": "middle" }, index));
  }
  if (!positions.length && !rates.length) {
    const place = { x: (left + width) / 2, y: y(0.75), "text-anchor": "middle" };
    parts.push(drawn("text", place, "nothing drafted yet"));
  }
  const told = positions.map(calibrationWords).concat(
    rates.map((rate, index) => `position ${index}: ${percent(rate)} of all blocks accepted now`));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", told.join("; ") || "nothing drafted yet");
  svg.replaceChildren(...parts);
}

function calibrationWords(each, index) {
  return `position ${index}: mean confidence ${figure(each.mean_confidence)}, mean acceptance `
    + `${figure(each.mean_acceptance)}, calibration error ${figure(each.error)}, of ${each.num_judged} tokens`;
}
