// Filters, zoom, hover and the warning about a stale page. Text from records only ever becomes text nodes.
"use strict";

function element(tag, css, text) {
  const made = document.createElement(tag);
  if (css) made.className = css;
  if (text !== undefined) made.textContent = text;
  return made;
}

function share(value) {
  return value === null || value === undefined ? "—" : value.toFixed(3);
}

function markStale() {
  const due = document.body.dataset.staleAfter;
  if (!due || Date.now() < Date.parse(due)) return;
  const banner = document.getElementById("stale");
  banner.textContent = `Stale: a newer build of this page was due by ${due.slice(0, 16).replace("T", " ")} UTC. The scheduled job has stopped.`;
  banner.hidden = false;
}

function setUpFilters() {
  document.querySelectorAll("[data-filter]").forEach((input) => {
    const id = input.dataset.filter;
    const list = document.getElementById(id);
    const tone = document.querySelector(`[data-tone="${id}"]`);
    const rows = [...list.querySelectorAll("[data-row]")];
    const none = list.closest("section").querySelector(".none-found");
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row) => {
        const text = row.textContent.toLowerCase();
        const fits = words.every((word) => text.includes(word)) && (!tone.value || row.dataset.tone === tone.value);
        row.hidden = !fits;
        shown += fits;
      });
      none.hidden = shown > 0;
    };
    input.addEventListener("input", apply);
    tone.addEventListener("change", apply);
  });
}

class Chart {
  constructor(root) {
    this.root = root;
    this.data = JSON.parse(root.querySelector(".chart-data").textContent);
    this.panels = root.querySelector(".panels");
    this.area = root.querySelector(".dates .area");
    this.cursor = root.querySelector(".cursor");
    this.tip = root.querySelector(".tip");
    this.dates = [...root.querySelectorAll(".dates span")].map((s) => [Number(s.dataset.x), s.textContent]);
    this.window = [0, this.data.days];
    this.chosen = -1;
    this.opens = false;
    this.listen();
    this.place();
  }

  listen() {
    this.panels.addEventListener("pointermove", (event) => this.point(event));
    this.panels.addEventListener("pointerdown", (event) => this.press(event));
    this.root.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.show(-1); });
    this.panels.addEventListener("click", () => { if (this.opens) this.open(); });
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.querySelectorAll("[data-range]").forEach((button) =>
      button.addEventListener("click", () => this.zoom(button)));
    this.root.querySelectorAll("[data-toggle-arm]").forEach((box) =>
      box.addEventListener("change", () => this.toggle(box.dataset.toggleArm, box.checked)));
    window.addEventListener("resize", () => this.place());
  }

  zoom(button) {
    const days = Number(button.dataset.range);
    this.window = [days ? Math.max(0, this.data.days - days) : 0, this.data.days];
    this.root.querySelectorAll("[data-range]").forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
    this.place();
  }

  toggle(arm, shown) {
    this.root.querySelectorAll("[data-arm]").forEach((part) => {
      if (part.dataset.arm !== arm) return;
      if (part instanceof SVGElement) part.style.display = shown ? "" : "none";
      else part.hidden = !shown;
    });
  }

  // Everything that stands at a time is set anew for the window shown.
  place() {
    const [from, to] = this.window;
    const width = to - from;
    this.root.querySelectorAll("svg.plot").forEach((svg) => svg.setAttribute("viewBox", `${from} 0 ${width} 100`));
    this.root.querySelectorAll("i[data-x]").forEach((block) => {
      const share = (block.dataset.w / width) * this.area.clientWidth;
      block.style.left = `${((block.dataset.x - from) / width) * 100}%`;
      block.style.width = `${(block.dataset.w / width) * 100}%`;
      if (block.parentElement.classList.contains("builds")) block.textContent = share > 40 ? block.dataset.label : "";
    });
    this.labelDates(from, width);
    this.show(-1);
  }

  labelDates(from, width) {
    const whole = width === this.data.days;
    const most = Math.max(2, Math.floor(this.area.clientWidth / 90));
    const step = Math.max(1, Math.ceil(width / most));
    const start = Date.parse(this.data.start);
    const labels = whole ? this.dates : [];
    if (!whole) {
      for (let x = Math.ceil(from); x <= from + width; x += step) {
        const day = new Date(start + x * 864e5);
        labels.push([x, day.toLocaleDateString("en-GB", { day: "2-digit", month: "short", timeZone: "UTC" })]);
      }
    }
    const inside = labels.filter(([x]) => x - from > 0.035 * width && from + width - x > 0.035 * width);
    this.area.replaceChildren(...inside.map(([x, text]) => {
      const label = element("span", "", text);
      label.style.left = `${((x - from) / width) * 100}%`;
      return label;
    }));
  }

  point(event) {
    const box = this.area.getBoundingClientRect();
    const x = this.window[0] + ((event.clientX - box.left) / box.width) * (this.window[1] - this.window[0]);
    this.show(this.nearest(x), event.clientY);
  }

  // A finger has to tap a night twice: the first tap only tells about it.
  press(event) {
    const before = this.chosen;
    this.point(event);
    this.opens = event.pointerType === "mouse" || before === this.chosen;
  }

  nearest(x) {
    const nights = this.data.nights;
    let best = 0;
    nights.forEach((night, i) => {
      if (Math.abs(night[0] - x) < Math.abs(nights[best][0] - x)) best = i;
    });
    return best;
  }

  show(i, clientY) {
    this.chosen = i;
    this.cursor.hidden = this.tip.hidden = i < 0;
    if (i < 0) return;
    const night = this.data.nights[i];
    const area = this.area.getBoundingClientRect();
    const root = this.root.getBoundingClientRect();
    const panels = this.panels.getBoundingClientRect();
    const x = area.left + ((night[0] - this.window[0]) / (this.window[1] - this.window[0])) * area.width;
    this.cursor.style.left = `${x - panels.left}px`;
    this.tip.replaceChildren(...this.words(night));
    const right = x - root.left + 14 + this.tip.offsetWidth < root.width;
    this.tip.style.left = right ? `${x - root.left + 14}px` : `${Math.max(4, x - root.left - 14 - this.tip.offsetWidth)}px`;
    this.tip.style.top = `${(clientY === undefined ? panels.top : clientY) - root.top + 16}px`;
  }

  words([, id, status, at, version, figures]) {
    const tones = { PASS: "good", INCONCLUSIVE: "warn", RUNNING: "busy" };
    const head = element("p");
    head.append(element("b", "", `${at} UTC `), element("span", `chip ${tones[status] || "bad"}`, status));
    const lines = Object.entries(this.data.arms).map(([arm, css], i) => {
      const line = element("p");
      line.append(element("i", `swatch ${css}`), `${arm} `);
      const f = figures[i];
      if (!f) line.append("—");
      else {
        line.append(element("b", "", share(f[0])), element("span", "soft", ` ${share(f[1])}–${share(f[2])}, n ${f[5]}`));
        if (f[3] !== null) line.append(element("span", "soft", `, ${f[3].toFixed(0)} tokens`));
        if (f[4]) line.append(element("span", "soft", `, ${(f[4] * 100).toFixed(1)} % degenerate`));
      }
      return line;
    });
    const foot = element("p", "soft", this.data.versions[version] || "no run");
    return [head, ...lines, foot, ...(id ? [element("p", "soft", "click to open the run")] : [])];
  }

  key(event) {
    const last = this.data.nights.length - 1;
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.target !== this.root) return;
    if (event.key in moves) {
      const from = this.chosen < 0 ? last + (event.key === "ArrowLeft" ? 1 : 0) : this.chosen;
      this.show(Math.min(last, Math.max(0, from + moves[event.key])));
      event.preventDefault();
    } else if (event.key === "Enter") this.open();
    else if (event.key === "Escape") this.show(-1);
  }

  open() {
    const id = this.chosen >= 0 ? this.data.nights[this.chosen][1] : "";
    if (id) window.location.href = `../runs/${encodeURIComponent(id)}/index.html`;
  }
}

document.querySelectorAll(".js").forEach((part) => { part.hidden = false; });
markStale();
setUpFilters();
document.querySelectorAll("[data-chart]").forEach((root) => new Chart(root));
