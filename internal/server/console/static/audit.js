// Who changed what, and who was refused.
import { useLook } from "./api.js";
import { html, Missing, Table, Tag, time, Trouble, useAddress } from "./ui.js";

const kinds = { done: "good", failed: "warn", refused: "bad" };
const most = 200;

export function Audit({ session }) {
	return session.admin ? html`<${Entries} />` : html`<h1>Audit</h1>
		<p class="note">Your token may not read the audit trail: that needs the permission admin on everything.</p>`;
}

function Entries() {
	const look = useLook(`/audit?all&count=${most}`, 5000);
	const [filter, setFilter] = useAddress("contains");
	const all = (look.data?.entries ?? []).toReversed();
	const since = look.data?.since ? `since ${time(look.data.since)}` : "since a time that some node does not say";
	const text = (e) => [e.node, e.who, e.from, e.what, e.names, e.body, e.result].join(" ").toLowerCase();
	const found = all.filter((e) => text(e).includes(filter.toLowerCase()));
	return html`
		<h1>Audit</h1>
		<p class="note">Changes, failed logins and refusals ${since}, the newest ${most} first. The logs have all.</p>
		<div class="tools"><label>Contains <input type="search" value=${filter}
			onInput=${(e) => setFilter(e.target.value)} /></label>
			<span role="status">${look.data && `${found.length} of ${all.length} entries`}</span></div>
		<${Missing} of=${look.data?.missing} />
		<${Trouble} error=${look.data ? null : look.error} />
		${look.data && html`<${Table} label="Audit" rows=${found}
			empty=${all.length ? "No entry contains that." : `Nothing was changed, and nobody was refused, ${since}.`}
			columns=${[{ name: "Time", of: (e) => html`<span class="whole">${time(e.time)}</span>` },
			{ name: "Who", of: (e) => e.who || "–" }, { name: "What", of: (e) => e.what },
			{ name: "Of", long: true, of: (e) => html`${e.names} ${e.body && html`<code>${e.body}</code>`}` },
			{ name: "Result", long: true, of: (e) => html`<${Tag} kind=${kinds[e.kind]}>${e.kind}<//> ${e.kind === "done"
				? "" : e.result}` },
			{ name: "From", of: (e) => e.from }, { name: "Node", of: (e) => e.node },
		]} />`}`;
}
