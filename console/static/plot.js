// Plots of the last 15 minutes.
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";
import uPlot from "./vendor/uplot.mjs";
import { html, short } from "./ui.js";

const colors = ["--line-1", "--line-2", "--line-3", "--line-4"];

// joined joins what several nodes remember of one thing, as a Map from seconds to values. A point is missing where no
// node knows anything. The newest points are left out until all nodes have theirs: half a sum would look like a fall.
function joined(nodes, field, add) {
	const at = new Map();
	const end = Math.min(...nodes.map((n) => n.from + (length - 1) * n.step_seconds));
	for (const n of nodes) {
		n.fields[field]?.forEach((v, i) => {
			const t = n.from + i * n.step_seconds;
			if (v !== null && t <= end) at.set(t, at.has(t) ? add(at.get(t), v) : v);
		});
	}
	at.end = end;
	return at;
}

const length = 90; // points, of 10 s each

export const sums = (nodes, field) => joined(nodes, field, (a, b) => a + b);
// largest is for ages and percentiles, which do not add up.
export const largest = (nodes, field) => joined(nodes, field, Math.max);
export const single = (node, field) => sums([node], field);

// newest returns the value of the newest points; undefined: nothing was measured in the last 10 s.
export const newest = (points) => points.get(points.end);

const clock = (t) => {
	const d = new Date(t * 1000);
	return `${String(d.getHours()).padStart(2, "0")}:${String(d.getMinutes()).padStart(2, "0")}`;
};

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
	const box = useRef(), plot = useRef(), range = useRef();
	const dark = useDark();
	const times = [...new Set(series.flatMap((s) => [...s.points.keys()]))].sort((a, b) => a - b);
	const data = [times, ...series.map((s) => times.map((t) => s.points.get(t) ?? null))];
	const names = series.map((s) => s.name).join("\n");
	const none = times.length === 0;
	const end = Math.max(...series.map((s) => s.points.end));
	range.current = end;
	useEffect(() => {
		if (none) return;
		const css = getComputedStyle(document.documentElement);
		const color = (name) => css.getPropertyValue(name).trim();
		const axis = { stroke: color("--weak"), grid: { stroke: color("--grid"), width: 1 },
			ticks: { stroke: color("--grid"), width: 1 } };
		const p = new uPlot({
			width: box.current.clientWidth, height: 160, legend: { show: false }, cursor: { drag: { x: false, y: false } },
			scales: { x: { range: () => [range.current - 60 * 15, range.current] }, y: { range: (_, low,
				high) => [0, Math.max(high, 1e-9) * 1.1] } },
			axes: [{ ...axis, space: 60, size: 30, incrs: [60, 180, 300], values: (_, all) => all.map(clock) }, { ...axis,
				size: 64, values: (_, all) => all.map((v) => unit(v)) }],
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
	}, [names, dark, none]);
	useEffect(() => plot.current?.setData(data));
	const last = (s) => (newest(s.points) === undefined ? "–" : unit(newest(s.points)));
	const words = series.map((s) => `${s.name} ${last(s)}`).join(", ");
	return html`<figure class="plot">
		<figcaption><span>${title}</span>
			<span class="legend">${series.map((s, i) => html`<span key=${s.name}><i class="line-${(i % colors.length) + 1}">
				</i>${s.name} <b>${last(s)}</b></span>`)}</span>
		</figcaption>
		${none ? html`<p class="empty">Nothing happened in the last 15 minutes, or the node began a moment ago.</p>`
			: html`<div ref=${box} role="img" aria-label=${`${title}, the last 15 minutes; now ${words}`}></div>`}
	</figure>`;
}
