// Settings of topics and channels: what GET gives, edited field by field, and sent back with its version, so that two
// people who change them at once do not undo each other's change without a word.
import { useEffect, useState } from "./vendor/hooks.mjs";
import { get, post } from "./api.js";
import { announce, bytes, html, span, Trouble } from "./ui.js";
import { duration, number, rules, size } from "./units.js";

const limit = { default: 0, none: -1 }, keep = { no: 0, "no limit": -1 }, off = { none: 0 };
// Each field: its label, how its number is written, and the words for special numbers, or the values to choose from.
const fields = {
	retention_age_ms: ["Retention age", duration, limit],
	retention_bytes: ["Retention bytes of a partition", size, limit],
	retention_count: ["Retention messages of a partition", number, limit],
	keep_age_ms: ["Keep confirmed messages for", duration, keep], keep_bytes: ["Keep confirmed bytes", size, keep],
	quota_bytes: ["Quota bytes", size, off], quota_count: ["Quota messages", number, off],
	quota_mode: ["At the quota", null, ["reject", "drop-oldest"]],
	min_isr: ["Replicas that must have a message", number, { majority: 0 }],
	partitions: ["Partitions (can only grow)", number],
	order: ["Order", null, ["none", "partition", "key", "declared"]], key_header: ["Header with the key"],
	max_attempts: ["Deliveries before a message is a dead letter", number, { "no limit": 0 }],
	dead_letter: ["Dead letters go to"], rate_per_second: ["Messages per second", number, { "no limit": 0 }],
	max_in_flight: ["In flight in the whole channel", number, { "no limit": 0 }],
	sample_rate: ["Sample (percent)", number, { all: 0 }], rate_bytes: ["Bytes per second", size, { "no limit": 0 }],
};
const fixed = ["version", "durability", "filter", "unknown"];
// What GET leaves out while it is 0.
const unsaid = { topic: { keep_age_ms: 0, keep_bytes: 0 }, channel: { rate_bytes: 0 } };
const notes = {
	topic: "Times have a unit (72h, 10d), sizes may have one (10GiB). default: the node's setting.",
	channel: "",
};

const choicesOf = (n) => (Array.isArray(fields[n]?.[2]) ? fields[n][2] : null);
const unitOf = (n, v) => fields[n]?.[1] ?? (typeof v === "number" ? number : { read: (x) => x, write: String });
const labelOf = (n) => fields[n]?.[0] ?? n;

// written returns a value as its field shows it, and read is its inverse: undefined if the text is none.
function written(n, v) {
	const [word] = Object.entries(choicesOf(n) ? {} : fields[n]?.[2] ?? {}).find(([, special]) => special === v) ?? [];
	return word ?? unitOf(n, v).write(v);
}

function read(n, had, text) {
	const special = choicesOf(n) ? undefined : fields[n]?.[2]?.[text.trim().toLowerCase()];
	return special ?? unitOf(n, had).read(text);
}

// inWords says large times and sizes shorter.
function inWords(n, v) {
	if (!(v >= 1000)) return null;
	return fields[n]?.[1] === duration ? html`<small>${span(v / 1000)}</small>`
		: fields[n]?.[1] === size ? html`<small>${bytes(v)}</small>` : null;
}

export function Settings({ where, kind, readOnly }) {
	const [had, setHad] = useState(null); // as the node gave them
	const [typed, setTyped] = useState({});
	const [error, setError] = useState(null);
	const load = async () => {
		try {
			setHad({ ...unsaid[kind], ...(await get(where)) });
			setError(null);
		} catch (e) {
			setError(e);
		}
	};
	useEffect(() => void load(), [where]);
	if (!had) return html`<${Trouble} error=${error} />`;
	const names = Object.keys(had).filter((n) => !fixed.includes(n));
	const changed = Object.keys(typed);
	const text = (n) => typed[n] ?? written(n, had[n]);
	const save = async (e) => {
		e.preventDefault();
		const wanted = { ...had };
		for (const n of changed) {
			wanted[n] = n === "filter" ? { ...typed.filter, rules: rules.read(typed.filter.text), text: undefined }
				: read(n, had[n], typed[n]);
			if (wanted[n] === undefined) {
				setError(new Error(`${labelOf(n)}: “${typed[n]}” is not ${unitOf(n, had[n]).like}. Nothing was changed.`));
				return;
			}
		}
		for (const n of Object.keys(unsaid[kind])) {
			if (wanted[n] === 0 && !(n in typed)) delete wanted[n]; // an older node may not know the name
		}
		try {
			setHad({ ...unsaid[kind], ...(await post(where, wanted)) });
			setTyped({});
			setError(null);
			announce("The settings are saved.");
		} catch (err) {
			if (err.status === 409) {
				await load();
				setError(new Error("Somebody else changed the settings meanwhile: nothing of yours was saved. The fields "
					+ "that you did not touch show theirs now; look at them, and save again if yours is still meant."));
				return;
			}
			setError(err);
		}
	};
	const type = (n) => (e) => setTyped({ ...typed, [n]: e.target.value });
	return html`<form class="settings" onSubmit=${save} aria-label="Settings">
		<p class="note">Version ${had.version}${had.version === 0 ? ": never changed" : ""}. ${notes[kind]}${readOnly
			&& " Read only."}</p>
		<div class="fields">${names.map((n) => html`<label key=${n} class=${n in typed ? "changed" : ""}>${labelOf(n)}
			${choicesOf(n) && !readOnly ? html`<select value=${text(n)} onChange=${type(n)}>
				${[...new Set([...choicesOf(n), text(n)])].map((c) => html`<option key=${c} value=${c}>${c
				|| "default"}</option>`)}</select>`
				: html`<input type="text" spellcheck=${false} onInput=${type(n)} readOnly=${readOnly}
				value=${text(n) || (choicesOf(n) && "default")} />`}
			${inWords(n, read(n, had[n], text(n)))}
			${n in typed && html`<small>was ${written(n, had[n]) || "empty"}</small>`}</label>`)}</div>
		${had.filter && html`<${Filter} had=${had.filter} typed=${typed.filter} readOnly=${readOnly}
			onType=${(filter) => setTyped({ ...typed, filter })} />`}
		<${Trouble} error=${error} />
		<div class="buttons">${!readOnly && html`<button disabled=${changed.length === 0}>Save</button>`}
			<button type="button" onClick=${() => { setTyped({}); load(); }}>Reload</button></div>
	</form>`;
}

// Filter shows which messages a channel gets: rules as the command line writes them, one a line.
function Filter({ had, typed, readOnly, onType }) {
	const now = typed ?? { ...had, text: rules.write(had.rules) };
	const locked = readOnly || now.rules?.some((r) => `${r.header}${r.pattern}`.includes("\n"));
	const choose = (e) => onType({ ...now, [e.target.name]: e.target.value === "yes" });
	return html`<fieldset class=${typed ? "changed" : ""}><legend>Filter</legend>
		<div class="row">
			<label>Deliver messages that <select name="invert" disabled=${locked} value=${now.invert ? "yes" : "no"}
				onChange=${choose}><option value="no">match</option><option value="yes">do not match</option></select></label>
			<label>the rules below <select name="all" disabled=${locked} value=${now.all ? "yes" : "no"} onChange=${choose}>
				<option value="no">any of them</option><option value="yes">all of them</option></select></label>
		</div>
		<label>Rules, one a line: HEADER=VALUE, HEADER^=PREFIX, HEADER*=GLOB, HEADER~=REGEXP, or HEADER alone
			<textarea rows=${Math.max(2, now.text.split("\n").length)} spellcheck=${false} readOnly=${locked}
				placeholder="no rules: every message" value=${now.text}
				onInput=${(e) => onType({ ...now, text: e.target.value })}></textarea></label>
	</fieldset>`;
}
