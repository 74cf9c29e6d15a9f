// Puts the page together: the head, the filters, and the views, which follow the selection.

/// A view stands on the page where `has` finds something in the files for it to show.
const VIEWS = {
  compare: {title: "Comparison", draw: drawCompare, has: () => DATA.comparisons.length > 0,
    text: "What became of every case, worst first, by the rules of attnbench gate."},
  overview: {title: "Results", draw: drawTable, has: () => true,
    text: "The triangle before a case opens everything about a result: errors, steps, kernels, the " +
      "command that repeats it."},
  peers: {title: "Side by side", draw: drawPeers,
    has: () => RESULTS.some((r) => r.peer && timeOf(r) !== null),
    text: "Every case that several backends were timed on: the time of each over the best one's."},
  roofline: {title: "Roofline", draw: drawRoofline,
    has: () => RESULTS.some((r) => METRICS.flops.of(r) > 0 && r.throughput.bytes > 0),
    text: "Rates under what the device was measured to do at best."},
  sweep: {title: "Sweeps", draw: drawSweep, has: () => sweepAxes(RESULTS).length > 0,
    text: "A panel for each combination of the other keys, a line for each backend. Panels of a " +
      "scenario have the same scales."},
  accuracy: {title: "Error against speed", draw: drawAccuracy,
    has: () => RESULTS.some((r) => r.error),
    text: "err_ratio is the error over that of the same maths in the storage precision."},
  quantization: {title: "Cost of quantising", draw: drawQuantization,
    has: () => RESULTS.some((r) => quantOf(r) !== null),
    text: "How far the output is from attention without any quantisation (relative RMS), and the bytes " +
      "that a token takes for it. It is the price of the format and the scales, not of a kernel."},
  samples: {title: "Samples", draw: drawSamples,
    has: () => RESULTS.some((r) => r.timing?.samples_us.length), text: ""},
  steps: {title: "Steps", draw: drawSteps, has: () => RESULTS.some((r) => r.timing?.steps.length),
    text: "Shares of the whole layer: cache write, attention, merges, collectives."},
  cascade: {title: "Cascade", draw: drawCascade,
    has: () => DATA.files.some((file) => file.cascade.length),
    text: "Time without a pass of its own over the shared prefix, over the time with it: above 1 " +
      "it pays."},
  dcp: {title: "Context parallelism", draw: drawDcp,
    has: () => RESULTS.some((r) => r.timing && isNumber(r.fields[WORLD])),
    text: "The steps of the layer by the ranks of the group; above a bar its time over that of " +
      "one rank."},
  environment: {title: "Environment", draw: drawEnvironment, has: () => true, text: ""},
};
// These do not follow the selection or redraw themselves.
const FIXED = new Set(["environment"]);

function redrawView(name) {
  const container = document.getElementById(`${name}-view`);
  // A control that was used keeps the focus when the view is drawn anew.
  const controls = () => [...container.querySelectorAll("select, input, button")];
  const focused = controls().indexOf(document.activeElement);
  if (name !== "overview") container.replaceChildren();
  VIEWS[name].draw(container);
  if (focused >= 0) controls()[focused]?.focus();
}

function drawHead() {
  const file = DATA.files[selection.file];
  const device = file.device.name || file.cpu;
  document.getElementById("subtitle").textContent =
    [device, file.created, `attnbench ${file.version} (${file.git})`].join(" · ");
  document.getElementById("heading").textContent = document.title;
}

function buildPage() {
  readAddress();
  const nav = document.getElementById("nav");
  const main = document.getElementById("views");
  for (const [name, view] of Object.entries(VIEWS)) {
    if (!view.has()) continue;
    nav.append(element("a", {href: `#${name}`}, view.title));
    main.append(element("section", {id: name, "aria-labelledby": `${name}-title`},
      element("h2", {id: `${name}-title`}, view.title),
      view.text ? element("p", {class: "hint"}, view.text) : null,
      element("div", {id: `${name}-view`, class: "view"})));
  }
  drawHead();
  filterBar(document.getElementById("filters"));
  const views = Object.keys(VIEWS).filter((name) => document.getElementById(name));
  views.forEach(redrawView);
  selection.listeners.push(() => {
    tableState.rows = PAGE_OF_ROWS;
    drawHead();
    views.filter((name) => !FIXED.has(name)).forEach(redrawView);
  });
  let width = window.innerWidth;
  let waiting = 0;
  window.addEventListener("resize", () => {
    // Why the width alone: phones resize the height whenever their address bar moves.
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => views.filter((name) => !FIXED.has(name)).forEach(redrawView), 150);
  });
  window.addEventListener("scroll", tooltip.hide, {passive: true});
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

buildPage();
