// The network as a graph: dagre chooses the places of the boxes, Panzoom moves and zooms the picture.
{
  const WIDTH = 144, HEIGHT = 40, GAP = 30, PITCH = WIDTH + GAP, MARGIN = 12, STEP = 80;
  const NOISE = [0.12, 0.3, 0.52, 0.76, 1];
  const figure = document.getElementById("graph");
  const canvas = figure.querySelector(".canvas");
  const scene = canvas.querySelector("g");
  const facts = document.getElementById("graph-facts");
  const hint = facts.innerHTML;
  const { nodes, edges } = JSON.parse(document.getElementById("graph-data").textContent);

  const make = (tag, attributes, parent, words) => {
    const made = document.createElementNS(canvas.namespaceURI, tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    if (words !== undefined) made.textContent = words;
    if (parent) parent.append(made);
    return made;
  };

  // From left to right, one column per step. x is shifted so that column n begins at n * PITCH.
  const layOut = () => {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: GAP, edgesep: 8 });
    nodes.forEach((_, index) => graph.setNode(String(index), { width: WIDTH, height: HEIGHT }));
    edges.forEach(([source, target]) => graph.setEdge(String(source), String(target), {}));
    dagre.layout(graph);
    const shifted = (point) => ({ x: point.x + GAP / 2, y: point.y });
    const places = nodes.map((_, index) => shifted(graph.node(String(index))));
    const lines = edges.map(([source, target]) =>
      graph.edge(String(source), String(target)).points.map(shifted));
    const count = 1 + Math.max(...places.map((place) => Math.floor(place.x / PITCH)));
    const columns = Array.from({ length: count }, () => ({ low: Infinity, high: -Infinity }));
    const widen = (x, low, high) => {
      const column = columns[Math.min(count - 1, Math.max(0, Math.floor(x / PITCH)))];
      column.low = Math.min(column.low, low);
      column.high = Math.max(column.high, high);
    };
    places.forEach(({ x, y }) => widen(x, y - HEIGHT / 2, y + HEIGHT / 2));
    lines.forEach((points) => points.forEach(({ x, y }, index) => {
      widen(x, y, y);
      if (index) {
        // A line may leave a column between two of its points.
        const last = points[index - 1];
        const middle = (y + last.y) / 2;
        for (const end of [x, last.x]) widen(end, middle, middle);
      }
    }));
    return { places, lines, columns };
  };

  // How the columns are cut into rows, like words into lines, so that all of them are as large as possible.
  const arrange = ({ columns }, width, height) => {
    let best = null;
    for (let count = 1; count <= columns.length; count++) {
      const rows = [];
      let top = 0;
      for (let first = 0; first < columns.length; first += count) {
        const part = columns.slice(first, first + count);
        const low = Math.min(...part.map((column) => column.low)) - MARGIN;
        const high = Math.max(...part.map((column) => column.high)) + MARGIN;
        rows.push({ first, top, low, height: high - low });
        top += high - low;
      }
      const scale = Math.min(width / (count * PITCH), height / top, 1);
      if (!best || scale >= best.scale) best = { rows, count, scale, width: count * PITCH, height: top };
    }
    return best;
  };

  const drawBox = (node, index) => {
    const box = make("g", {
      class: ["box", node.precision ? `p-${node.precision}` : "end", `level-${node.level}`].join(" "),
      tabindex: index ? -1 : 0, role: "img", "aria-label": `${node.name}: ${node.facts}`, "data-index": index,
    });
    make("rect", { class: "frame", width: WIDTH, height: HEIGHT, rx: node.precision ? 5 : HEIGHT / 2 }, box);
    const left = node.precision ? 31 : 16;
    if (node.precision) {
      make("path", { class: "band", d: `M24 0V${HEIGHT}H5a5 5 0 0 1-5-5V5a5 5 0 0 1 5-5z` }, box);
      make("text", { class: "badge", x: 12, y: 25 }, box, node.badge);
    }
    if (node.level !== undefined) {
      const tall = NOISE[node.level] * (HEIGHT - 2);
      make("rect", { class: "noise", x: WIDTH - 9, y: HEIGHT - 1 - tall, width: 8, height: tall }, box);
    }
    const long = node.operator.length > 13;
    const operator = node.operator.length > 18 ? `${node.operator.slice(0, 17)}…` : node.operator;
    make("text", { class: `operator${long ? " long" : ""}`, x: left, y: 17 }, box, operator);
    make("text", { class: "short", x: left, y: 31 }, box, node.short);
    return box;
  };

  const curve = (points) => {
    const [start, ...rest] = points;
    const end = rest.pop();
    let path = `M${start.x} ${start.y}`;
    rest.forEach((point, index) => {
      const next = rest[index + 1] ?? end;
      path += `Q${point.x} ${point.y} ${(point.x + next.x) / 2} ${(point.y + next.y) / 2}`;
    });
    return `${path}L${end.x} ${end.y}`;
  };

  let layout, boxes, spots, shown, panzoom;
  let current = 0;

  // Draws all rows below one another; `spots` are the centres of the boxes in the picture.
  const draw = (arrangement) => {
    shown = arrangement;
    scene.replaceChildren();
    spots = [];
    for (const { first, top, low, height } of arrangement.rows) {
      const start = first * PITCH, width = arrangement.width;
      if (top) make("line", { class: "fold", x2: width, y1: top, y2: top }, scene);
      const row = make("svg", { y: top, width, height, viewBox: `${start} ${low} ${width} ${height}` }, scene);
      layout.lines.forEach((points, index) => {
        if (points[0].x < start + width && points[points.length - 1].x > start) {
          make("path", { class: edges[index][2] ? "tensor int8" : "tensor", d: curve(points) }, row);
        }
      });
      layout.places.forEach(({ x, y }, index) => {
        if (x < start || x >= start + width) return;
        boxes[index].setAttribute("transform", `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})`);
        row.append(boxes[index]);
        spots[index] = { x: x - start, y: y - low + top };
      });
    }
  };

  const fit = () => {
    const { clientWidth: width, clientHeight: height } = canvas;
    draw(arrange(layout, width, height));
    const whole = {
      minScale: shown.scale / 2, startScale: shown.scale,
      startX: (width / shown.scale - shown.width) / 2, startY: (height / shown.scale - shown.height) / 2,
    };
    if (!panzoom) {
      panzoom = Panzoom(scene, {
        ...whole, canvas: true, maxScale: 4, step: 0.3, animate: false, cursor: "grab", touchAction: "pan-y",
        handleStartEvent: () => {},
      });
    }
    panzoom.setOptions(whole);
    panzoom.reset({ animate: false });
  };

  const zoom = (factor) => {
    const { left, top } = canvas.getBoundingClientRect();
    const middle = { clientX: left + canvas.clientWidth / 2, clientY: top + canvas.clientHeight / 2 };
    panzoom.zoomToPoint(panzoom.getScale() * factor, middle);
  };

  const move = (x, y) => {
    const pan = panzoom.getPan(), scale = panzoom.getScale();
    panzoom.pan(pan.x + x / scale, pan.y + y / scale);
  };

  const tell = (index) => {
    const node = nodes[index];
    const name = document.createElement("b");
    name.textContent = node.name;
    facts.replaceChildren(name, ` ${node.facts} `);
    if (node.anchor) {
      const link = document.createElement("a");
      link.href = `#${node.anchor}`;
      link.textContent = "What it costs";
      facts.append(link);
    }
  };

  // Marks a box and moves it into the picture; `scale` is the least at which it is shown.
  const choose = (index, scale = 0) => {
    boxes[current].setAttribute("tabindex", -1);
    boxes[current].classList.remove("current");
    current = index;
    boxes[index].setAttribute("tabindex", 0);
    boxes[index].classList.add("current");
    tell(index);
    if (panzoom.getScale() < scale) panzoom.zoom(scale, { animate: false });
    const { x, y } = spots[index];
    const pan = panzoom.getPan(), now = panzoom.getScale();
    const { clientWidth: width, clientHeight: height } = canvas;
    const inside = (at, size, half) => at > half && at < size - half;
    const visible = inside((x + pan.x) * now, width, (now * WIDTH) / 2)
      && inside((y + pan.y) * now, height, (now * HEIGHT) / 2);
    if (!visible || scale) panzoom.pan(width / now / 2 - x, height / now / 2 - y, { force: true });
  };

  const stepTo = (index) => {
    choose(Math.min(nodes.length - 1, Math.max(0, index)));
    boxes[current].focus({ preventScroll: true });
  };

  const keys = {
    "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), "0": fit,
    ArrowLeft: (box) => (box ? stepTo(current - 1) : move(STEP, 0)),
    ArrowRight: (box) => (box ? stepTo(current + 1) : move(-STEP, 0)),
    ArrowUp: (box) => (box ? stepTo(current - 1) : move(0, STEP)),
    ArrowDown: (box) => (box ? stepTo(current + 1) : move(0, -STEP)),
    Home: (box) => (box ? stepTo(0) : fit()),
    End: (box) => box && stepTo(nodes.length - 1),
    Escape: (box) => box && canvas.focus({ preventScroll: true }),
  };

  const boxOf = (element) => element.closest?.(".box");

  const start = () => {
    layout = layOut();
    boxes = nodes.map(drawBox);
    fit();
    canvas.addEventListener("keydown", (event) => {
      const action = keys[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action(boxOf(event.target));
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !canvas.contains(document.activeElement)) return;
      if (Math.abs(event.deltaX) <= Math.abs(event.deltaY)) {
        panzoom.zoomWithWheel(event);
        return;
      }
      event.preventDefault();
      move(-event.deltaX, 0);
    }, { passive: false });
    // A finger scrolls the page up and down until the picture is tapped.
    canvas.addEventListener("focusin", (event) => {
      panzoom.setOptions({ touchAction: "none" });
      const box = boxOf(event.target);
      if (box) choose(Number(box.dataset.index));
    });
    canvas.addEventListener("focusout", () => panzoom.setOptions({ touchAction: "pan-y" }));
    canvas.addEventListener("pointerover", (event) => {
      const box = boxOf(event.target);
      if (box) tell(Number(box.dataset.index));
    });
    canvas.addEventListener("pointerleave", () => {
      if (boxes[current].classList.contains("current")) tell(current);
      else facts.innerHTML = hint;
    });
    let width = canvas.clientWidth;
    new ResizeObserver(() => {
      if (canvas.clientWidth !== width && !canvas.hasAttribute("viewBox")) fit();
      width = canvas.clientWidth;
    }).observe(canvas);
  };

  const ready = () => panzoom || start();

  figure.hidden = false;
  // A large network takes a second, so it is drawn when the reader comes near it or enters it.
  const seen = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) {
      seen.disconnect();
      ready();
    }
  }, { rootMargin: "800px" });
  seen.observe(figure);
  figure.addEventListener("focusin", ready);

  const buttons = { "graph-in": () => zoom(1.3), "graph-out": () => zoom(1 / 1.3), "graph-reset": fit };
  for (const id in buttons) {
    document.getElementById(id).addEventListener("click", buttons[id]);
  }

  const search = document.getElementById("graph-find");
  const answer = document.getElementById("graph-found");
  let matches = [];
  const show = (place) => {
    matches.place = place;
    answer.textContent = matches.length ? `${place + 1} of ${matches.length}` : search.value ? "none" : "";
    if (matches.length) choose(matches[place], 0.8);
  };
  const find = () => {
    const words = search.value.toLowerCase();
    const names = nodes.map((node) => `${node.name}\n${node.operator}`.toLowerCase());
    matches = words ? [...nodes.keys()].filter((index) => names[index].includes(words)) : [];
    boxes.forEach((box, index) => box.classList.toggle("match", matches.includes(index)));
    show(0);
  };
  search.addEventListener("input", find);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !matches.length) return;
    event.preventDefault();
    show((matches.place + (event.shiftKey ? matches.length - 1 : 1)) % matches.length);
  });

  // On paper the whole network is one picture, as large as it may be on one page.
  window.addEventListener("beforeprint", () => {
    ready();
    draw(arrange(layout, 680, 850));
    scene.style.transform = "none";
    canvas.setAttribute("viewBox", `0 0 ${shown.width} ${shown.height}`);
  });
  window.addEventListener("afterprint", () => {
    canvas.removeAttribute("viewBox");
    fit();
  });
}
