// Puts the page together: the head, the filters, and the views, which follow the selection.

const VIEWS = {
  compare: {title: "Comparison", draw: drawCompare,
    text: "What became of every case, worst first, by the rules of attnbench gate."},
  overview: {title: "Results", draw: drawTable,
    text: "A row opens to everything about a result: errors, steps, kernels, the command that " +
      "repeats it."},
  peers: {title: "Side by side", draw: drawPeers,
    text: "Every case that several backends were timed on: the time of each over the best one's."},
  roofline: {title: "Roofline", draw: drawRoofline,
    text: "Rates under what the device was measured to do at best."},
  sweep: {title: "Sweeps", draw: drawSweep,
    text: "A panel for each combination of the other keys, a line for each backend."},
  accuracy: {title: "Error against speed", draw: drawAccuracy,
    text: "err_ratio is the error over that of the same maths in the storage precision."},
  samples: {title: "Samples", draw: drawSamples, text: ""},
  steps: {title: "Steps", draw: drawSteps,
    text: "Shares of the whole layer: cache write, attention, merges, collectives."},
  cascade: {title: "Cascade", draw: drawCascade,
    text: "Time without a pass of its own over the shared prefix, over the time with it: above 1 " +
      "it pays."},
  dcp: {title: "Context parallelism", draw: drawDcp,
    text: "The steps of the layer by the ranks of the group; above a bar its time over that of " +
      "one rank."},
  environment: {title: "Environment", draw: drawEnvironment, text: ""},
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
  const nav = document.getElementById("nav");
  const main = document.getElementById("views");
  for (const [name, view] of Object.entries(VIEWS)) {
    if (name === "compare" && !DATA.comparisons.length) continue;
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
