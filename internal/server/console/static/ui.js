// What all pages are made of: text, numbers, tables, forms and dialogs.
import { h, Fragment } from "./vendor/preact.mjs";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";
import { waiters } from "./api.js";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
const units = ["", "k", "M", "G", "T", "P"];
export { Fragment };

// short writes a number with three digits.
export function short(n) {
	if (n === undefined || n === null || Number.isNaN(n)) return "–";
	let i = 0, v = Math.abs(n);
	while (v >= 999.5 && i < units.length - 1) {
		v /= 1000;
		i++;
	}
	const text = i === 0 && Number.isInteger(v) ? String(v) : v >= 99.95 ? v.toFixed(0) : v >= 9.995 ? v.toFixed(1)
		: v.toFixed(2).replace(/\.?0+$/, "");
	return (n < 0 ? "−" : "") + text + units[i];
}

export const rate = (n) => (n === undefined ? "–" : `${n > 0 && n < 0.01 ? "<0.01"
	: short(Math.round(n * 100) / 100)}/s`);

export function bytes(n) {
	if (n === undefined) return "–";
	let i = 0;
	while (n >= 1024 && i < 5) {
		n /= 1024;
		i++;
	}
	return `${i === 0 ? Math.round(n) : n.toFixed(n < 10 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][i]}`;
}

export function span(seconds) {
	if (seconds < 1) return seconds > 0 ? `${Math.round(seconds * 1000)} ms` : "0 s";
	if (seconds < 120) return `${Math.round(seconds)} s`;
	if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
	if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
	return `${Math.round(seconds / 86400)} days`;
}

// time writes a time of the browser's zone as 2026-01-31 23:59:59, the same everywhere.
export const time = (text) => (text ? new Date(text).toLocaleString("sv-SE") : "–");
export const plural = (n, word) => `${short(n)} ${word}${n === 1 ? "" : "s"}`;

export const topicLink = (t) => `#/topics/${encodeURIComponent(t)}`;
export const channelLink = (t, c) => `${topicLink(t)}/${encodeURIComponent(c)}`;

// announce tells a screen reader and the eye what came of an action.
let listeners = [];
export function announce(text, kind = "good") {
	listeners.forEach((f) => f({ text, kind, id: Math.random() }));
}

export function Announcements() {
	const [said, set] = useState(null);
	useEffect(() => {
		listeners.push(set);
		return () => (listeners = listeners.filter((f) => f !== set));
	}, []);
	useEffect(() => {
		if (!said || said.kind === "bad") return;
		const timer = setTimeout(() => set(null), 8000);
		return () => clearTimeout(timer);
	}, [said]);
	// Only what takes long enough to be noticed.
	const [waits, setWaits] = useState(0);
	const [slow, setSlow] = useState(false);
	useEffect(() => void waiters.add(setWaits), []);
	useEffect(() => {
		setSlow(false);
		if (!waits) return;
		const timer = setTimeout(() => setSlow(true), 400);
		return () => clearTimeout(timer);
	}, [waits > 0]);
	return html`<div class="said" role="status" aria-live="polite">
		${slow && html`<p class="wait">Waiting for the node…</p>`}
		${said && html`<p class=${said.kind}>${said.text} <button class="plain" onClick=${() => set(null)}
			aria-label="Close this message">×</button></p>`}
	</div>`;
}

// act carries out a change and says what came of it. It returns whether it was done.
export async function act(what, done) {
	try {
		const reply = await what();
		announce(typeof done === "function" ? done(reply) : done);
		return true;
	} catch (e) {
		announce(e.message, "bad");
		return false;
	}
}

// Tag is a short word in a box; the word says what the color says.
export const Tag = ({ kind = "", children }) => html`<span class="tag ${kind}">${children}</span>`;

// Marks marks a topic or a channel that does not deliver all that is published.
const marks = { paused: "paused", over_quota: "over quota", skipping: "skipping", full_partitions: "full",
	starved: "starved", dropping: "dropping", aside_count: "dead letters aside", delays_refused: "delays refused",
	read_only_partitions: "read only" };
export const Marks = ({ of }) => Object.entries(marks).filter(([field]) => of?.[field]).map(([, word]) =>
	html`<${Tag} key=${word} kind="warn">${word}<//> `);

// Facts is a list of numbers with names.
export function Facts({ of }) {
	return html`<dl class="facts">
		${of.filter(Boolean).map(([name, value, kind]) => html`<div key=${name} class=${kind ?? ""}><dt>${name}</dt><dd>
			${value}</dd></div>`)}
	</dl>`;
}

// Table takes columns [{name, of, number, sort, long}] and rows; what is long may break into lines. It scrolls by
// itself where it is too wide.
export function Table({ label, columns, rows, empty, sorted, onSort, keyOf }) {
	if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
	return html`<div class="wide" role="region" aria-label=${label} tabindex="0">
		<table>
			<thead><tr>${columns.map((c) => html`<th key=${c.name} scope="col" class=${c.number ? "number" : ""}
				aria-sort=${sorted && c.sort === sorted ? (c.sort === "name" ? "ascending" : "descending") : undefined}>
				${c.sort ? html`<button class="plain" onClick=${() => onSort(c.sort)}>${c.name}${c.sort === sorted
					? (c.sort === "name" ? " ↑" : " ↓") : ""}</button>` : c.name}</th>`)}</tr></thead>
			<tbody>${rows.map((r, i) => html`<tr key=${keyOf ? keyOf(r) : i}>${columns.map((c, j) => (j === 0
				? html`<th key=${c.name} scope="row">${c.of(r)}</th>`
				: html`<td key=${c.name} class=${c.number ? "number" : c.long ? "long" : ""}>${c.of(r)}</td>`))}</tr>`)}</tbody>
		</table>
	</div>`;
}

// Pager goes through a long list, a page of count rows at a time.
export function Pager({ of, offset, count, onOffset, label = "Pages of the list" }) {
	const last = of ? Math.min(of.count, offset + count) : 0;
	useEffect(() => {
		if (of && offset > 0 && offset >= of.count) onOffset(Math.max(0, Math.ceil(of.count / count) - 1) * count);
	}, [of?.count, offset]);
	return html`<nav class="pager" aria-label=${label}>
		<button disabled=${offset === 0} onClick=${() => onOffset(Math.max(0, offset - count))}>Previous</button>
		<span role="status">${!of ? "…" : of.count === 0 ? "none"
			: `${offset + 1}–${last} of ${of.count.toLocaleString("en")}`}</span>
		<button disabled=${!of || last >= of.count} onClick=${() => onOffset(offset + count)}>Next</button>
	</nav>`;
}

// useLater returns a value once it has not changed for a moment, so that not every letter is a request.
export function useLater(value, ms = 250) {
	const [late, set] = useState(value);
	useEffect(() => {
		const timer = setTimeout(() => set(value), ms);
		return () => clearTimeout(timer);
	}, [value]);
	return late;
}

// useAddress keeps a value in the address of the page, where reloading, going back and bookmarks find it.
export function useAddress(name, first = "") {
	const read = () => new URLSearchParams(location.hash.split("?")[1]).get(name) ?? String(first);
	const [value, set] = useState(read());
	useEffect(() => {
		const hear = () => set(read());
		addEventListener("hashchange", hear);
		hear();
		return () => removeEventListener("hashchange", hear);
	}, []);
	return [value, (v) => {
		const [at, query] = location.hash.split("?"), all = new URLSearchParams(query);
		all.delete(name);
		if (String(v) !== String(first)) all.set(name, v);
		history.replaceState(null, "", `${at || "#/"}${all.size ? `?${all}` : ""}`);
		set(String(v));
	}];
}

// Missing names the nodes and the partitions of a topic whose numbers an answer lacks.
export function Missing({ of = [], unserved = [] }) {
	if (!of.length && !unserved.length) return null;
	return html`<ul class="missing" role="alert">
		${unserved.length > 0 && html`<li key="unserved"><b>${unserved.length === 1 ? "Partition" : "Partitions"}
			${` ${unserved.slice(0, 8).join(", ")}`}${unserved.length > 8 && ` and ${unserved.length - 8} more`}</b>:
			no node serves ${unserved.length === 1 ? "it" : "them"} now. What channels have there is missing here.</li>`}
		${of.map((m) => html`<li key=${m.node}>
			<b>Node ${m.node}</b> gives no numbers: ${m.why}. What it leads is missing here.</li>`)}
	</ul>`;
}

// Trouble says why there is no data.
export const Trouble = ({ error }) => (error ? html`<p class="trouble" role="alert">${error.message}</p>` : null);

// Dialog is a modal dialog. The browser keeps the focus in it and gives it back afterwards.
export function Dialog({ title, onClose, children }) {
	const box = useRef();
	useEffect(() => {
		const before = document.activeElement, dialog = box.current;
		dialog.showModal();
		return () => {
			dialog.close(); // while it is open, nothing outside of it takes the focus
			if (before?.isConnected) before.focus();
		};
	}, []);
	return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose}>
		<h2 id="dialog-title">${title}</h2>
		${children}
	</dialog>`;
}

// Destroy is a button for what cannot be undone: it asks for the name or, with plain, only once more.
export function Destroy({ label, name, warning, plain, onDo }) {
	const [open, setOpen] = useState(false);
	const [typed, setTyped] = useState("");
	const close = () => {
		setOpen(false);
		setTyped("");
	};
	const go = async (e) => {
		e.preventDefault();
		if (!plain && typed !== name) return;
		close();
		await onDo();
	};
	return html`<${Fragment}>
		<button class="danger" onClick=${() => setOpen(true)}>${label}…</button>
		${open && html`<${Dialog} title=${`${label}: ${name}`} onClose=${close}>
			<form onSubmit=${go}>
				<p>${warning}</p>
				${!plain && html`<label><span>Type <b class="name">${name}</b> to confirm</span>
					<input autocomplete="off" autocapitalize="off" spellcheck=${false} value=${typed}
						onInput=${(e) => setTyped(e.target.value)} autofocus /></label>`}
				<div class="buttons"><button type="button" onClick=${close}>Cancel</button>
					<button class="danger" disabled=${!plain && typed !== name}>${label}</button></div>
			</form>
		<//>`}
	<//>`;
}

// Part is a section that is opened on demand; its content is made only then.
export function Part({ title, children }) {
	const [open, setOpen] = useState(false);
	return html`<details open=${open} onToggle=${(e) => setOpen(e.target.open)}>
		<summary><h2>${title}</h2></summary>
		${open && (typeof children === "function" ? children() : children)}
	</details>`;
}
