// Plots of the last 15 minutes, or of the last 12 hours.
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";
import uPlot from "./vendor/uplot.mjs";
import { path, useLook } from "./api.js";
import { html, short, span, useAddress } from "./ui.js";

const colors = ["--line-1", "--line-2", "--line-3", "--line-4"];

// ages are the distances of lines at which an age is written, in seconds.
const ages = [0.001, 0.01, 0.1, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 864000, 8640000];
const length = 90; // points
const ranges = { minutes: "the last 15 minutes", hours: "the last 12 hours" };

// useHistory asks for what the nodes remember of a topic, a channel or, without of, of themselves: of the last minutes,
// which is always there, and of the range that is chosen in the address of the page. Range is the choice.
export function useHistory(of, every) {
	const [range, setRange] = useAddress("range", "minutes");
	const recent = useLook(of && path("/history", of), every);
	const long = useLook(of && range === "hours" && path("/history", { ...of, hours: "true" }), 30000);
	const Range = () => html`<div class="tools range"><label>Plots of <select value=${range}
		onChange=${(e) => setRange(e.target.value)}>${Object.entries(ranges).map(([k, words]) => html`<option key=${k}
		value=${k}>${words}</option>`)}</select></label></div>`;
	return { recent, shown: range === "hours" ? long : recent, range: Range() };
}

// pointsOf returns a field of a series as a Map from seconds to values; undefined where nothing is known: a gap. gaps
// are the times, from and to, of which the series lacks what some node did.
export function pointsOf(series, field) {
	const step = series?.step_seconds ?? 10;
	const at = new Map(series?.fields[field]?.map((v, i) => [series.from + i * step, v ?? undefined]));
	at.step = step;
	at.end = series ? series.from + (length - 1) * step : -Infinity;
	at.gaps = [];
	let from = series?.from;
	for (const [begin, end] of series?.known ?? []) {
		if (begin > from) at.gaps.push([from, begin]);
		from = end;
	}
	if (series?.known && from < at.end) at.gaps.push([from, at.end]);
	return at;
}

// newest returns the value of the newest points; undefined: nothing was measured in the last 10 s.
export const newest = (points) => points.get(points.end);

// clock writes a time of day, with its seconds or without.
const clock = (t, seconds) => new Date(t * 1000).toLocaleTimeString("sv-SE").slice(0, seconds ? 8 : 5);

function useDark() {
	const query = matchMedia("(prefers-color-scheme: dark)");
	const [dark, set] = useState(query.matches);
	useEffect(() => {
		const hear = () => set(query.matches);
		query.addEventListener("change", hear);
		return () => query.removeEventListener("change", hear);
	}, []);
	return dark;
}

// Plot draws series [{name, points}], where points is a Map from seconds to values. unit writes a value.
export function Plot({ title, series, unit = short }) {
	const box = useRef(), plot = useRef(), range = useRef(), gaps = useRef();
	const dark = useDark();
	const [at, setAt] = useState(null); // which of times is pointed at
	const times = [...new Set(series.flatMap((s) => [...s.points.keys()]))].sort((a, b) => a - b);
	const data = [times, ...series.map((s) => times.map((t) => s.points.get(t) ?? null))];
	const names = series.map((s) => s.name).join("\n");
	const none = !series.some((s) => [...s.points.values()].some((v) => v !== undefined));
	const end = Math.max(...series.map((s) => s.points.end));
	const step = series[0]?.points.step ?? 10, inRange = ranges[step > 60 ? "hours" : "minutes"];
	range.current = end;
	gaps.current = series.flatMap((s) => s.points.gaps);
	useEffect(() => {
		if (none) return;
		const css = getComputedStyle(document.documentElement);
		const color = (name) => css.getPropertyValue(name).trim();
		const axis = { stroke: color("--weak"), grid: { stroke: color("--grid"), width: 1 },
			ticks: { stroke: color("--grid"), width: 1 } };
		const p = new uPlot({
			width: box.current.clientWidth, height: 160, legend: { show: false },
			hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)], drawClear: [(u) => {
				u.ctx.fillStyle = color("--old-box");
				for (const [from, to] of gaps.current) {
					const [left, right] = [from, to].map((t) => Math.max(u.bbox.left, u.valToPos(t, "x", true)));
					u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
				}
			}] }, cursor: { drag: { x: false, y: false } },
			scales: { x: { range: () => [range.current - length * step, range.current] }, y: { range: (_, low,
				high) => [0, high > 0 ? high * 1.1 : 1] } },
			axes: [{ ...axis, space: 60, size: 30, incrs: step > 60 ? [3600, 7200, 10800] : [60, 180, 300],
				values: (_, all) => all.map((t) => clock(t)) }, { ...axis, size: 64,
				...(unit === span ? { incrs: ages } : {}), values: (_, all) => all.map((v) => unit(v)) }],
			series: [{}, ...series.map((s, i) => ({
				label: s.name, stroke: color(colors[i % colors.length]), width: 2, dash: i >= colors.length ? [6, 4] : undefined,
					points: { size: 5 },
			}))],
		}, data, box.current);
		plot.current = p;
		const fit = new ResizeObserver(() => p.setSize({ width: box.current?.clientWidth ?? 300, height: 160 }));
		fit.observe(box.current);
		return () => {
			fit.disconnect();
			p.destroy();
			plot.current = undefined;
		};
	}, [names, dark, none, step]);
	useEffect(() => plot.current?.setData(data));
	const when = times[at]; // undefined: nothing is pointed at, and the newest values are shown
	const value = (s) => {
		const v = when === undefined ? newest(s.points) : s.points.get(when);
		return v === undefined ? "–" : unit(v);
	};
	const values = series.map((s) => `${s.name} ${value(s)}`).join(", ");
	const words = `${when === undefined ? "now" : clock(when, true)}: ${values}`;
	// The keyboard points like the mouse.
	const point = (i) => plot.current?.setCursor(i === null ? { left: -10, top: -10 }
		: { left: plot.current.valToPos(times[i], "x"), top: 0 });
	const key = (e) => {
		const steps = { ArrowLeft: -1, ArrowRight: 1, PageDown: -6, PageUp: 6, Home: -times.length, End: times.length };
		if (e.key === "Escape") point(null);
		if (!(e.key in steps)) return;
		e.preventDefault();
		point(Math.max(0, Math.min(times.length - 1, (at ?? times.length - (e.key === "End" ? 1 : 0)) + steps[e.key])));
	};
	return html`<figure class="plot">
		<figcaption><span>${title}</span>
			<span class="legend">${when !== undefined && html`<span>at ${clock(when, true)}</span>`}
				${series.map((s, i) => html`<span key=${s.name}><i class="line-${(i % colors.length) + 1}">
				</i>${s.name} <b>${value(s)}</b></span>`)}${!none && gaps.current.length > 0
				&& html`<span><i class="line-gap"></i>not known</span>`}</span>
		</figcaption>
		${none ? html`<p class="empty">Nothing happened in ${inRange}, or the node began a moment ago.</p>`
			: html`<div ref=${box} role="slider" tabindex="0" aria-label=${`${title}, ${inRange}`} aria-valuemin="0"
				aria-valuemax=${times.length - 1} aria-valuenow=${at ?? times.length - 1} aria-valuetext=${words}
				onKeyDown=${key} onBlur=${() => point(null)}></div>`}
	</figure>`;
}
