// What quantising costs and what it saves: the error against the bytes that a token takes.

const quantState = {rows: 30};

function drawQuantization(container) {
  const results = selection.results().filter((r) => quantOf(r) !== null);
  if (!results.length) {
    container.append(absent("Nothing is quantised in the selected results."));
    return;
  }
  const clipped = results.filter(quantMark);
  if (clipped.length) {
    const worst = clipped[d3.scan(clipped, (a, b) => quantOf(b) - quantOf(a))];
    container.append(element("p", {class: "absent warning"},
      `Scales are too small in ${plural(clipped.length, "result")}: ${clippedText(worst)} are ` +
      `clipped in ${titleOf(worst)}, ${worst.backend}. attnbench calibrate makes scales that fit.`));
  }
  const plotted = results.filter((r) => quantOf(r) > 0 && isNumber(r.kv_bytes_per_token));
  if (plotted.length) drawCost(container, plotted);
  container.append(costTable(results));
}

function drawCost(container, results) {
  container.append(legend(backendsIn(results)));
  const bytes = [...new Set(results.map((r) => r.kv_bytes_per_token))].sort((a, b) => a - b);
  const chart = plot(container, {
    label: "Cost of quantising against bytes of K and V per token",
    x: {scale: d3.scaleLog().base(2).domain(logDomain(bytes, 1.3)), ticks: bytes, room: 52,
        label: "bytes of K and V per token", format: (value) => `${value} B`},
    y: {scale: d3.scaleLog().domain(logDomain(results.map(quantOf))),
        label: "relative RMS against unquantised", format: formatShare},
  });
  // Why spread: backends that store the same codes have the same cost.
  const backends = backendsIn(results);
  const spread = (r) => 7 * (backends.indexOf(r.backend) - (backends.length - 1) / 2);
  drawPoints(chart, results.map((result) => ({
    x: result.kv_bytes_per_token, y: quantOf(result), backend: result.backend, result,
    shift: spread(result), title: titleOf(result), kind: quantMark(result) ? "wrong" : "",
    lines: [["bytes per token", String(result.kv_bytes_per_token)], ...describe(result)]})));
}

/// The most expensive first.
function costTable(results) {
  const sorted = [...results].sort((a, b) => quantOf(b) - quantOf(a));
  const isClipped = results.some(quantMark);
  const table = simpleTable(
    ["case", "backend", "quant", "bytes per token", ...(isClipped ? ["clipped"] : [])],
    sorted.slice(0, quantState.rows).map((r) => [
      element("button", {type: "button", class: "toggle plain", onclick: () => showResult(r)},
        breakable(nameOf(r))),
      breakable(r.backend, /(?<=[_.:/])/), formatShare(quantOf(r)) + quantMark(r),
      isNumber(r.kv_bytes_per_token) ? String(r.kv_bytes_per_token) : NONE,
      ...(isClipped ? [clippedText(r) || NONE] : [])]), {label: "cost of quantising", class: "plain costs"});
  const more = sorted.length - quantState.rows;
  if (more <= 0) return table;
  const showAll = () => { quantState.rows = Infinity; redrawView("quantization"); };
  return element("div", {}, table, element("p", {class: "more"}, `${plural(more, "cheaper result")} `,
    element("button", {type: "button", onclick: showAll}, "Show all of them")));
}
