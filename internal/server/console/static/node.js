// One node: what it has left, who is connected to it, and its settings.
import { useState } from "./vendor/hooks.mjs";
import { path, useLook } from "./api.js";
import { bytes, channelLink, Facts, html, Part, short, span, Table, Tag, time, topicLink, Trouble } from "./ui.js";
import { Lacks } from "./may.js";

// facts of a process and its machine; undefined: nobody said them.
export const facts = (v) => (v ? [["Disk free", v.disk_free_bytes ? bytes(v.disk_free_bytes) : "not known"],
	["Memory", v.memory_bytes ? bytes(v.memory_bytes) : "not known"], ["Up for", span(v.uptime_seconds)]] : []);

export function Node({ name, session }) {
	return html`<h1><a href="#/nodes">Nodes</a> / <span class="name">${name}</span></h1>
		${session.view ? html`<${Sections} node=${name} />` : html`<${Lacks} may=${{}} of="node" />`}`;
}

function Sections({ node }) {
	const vitals = useLook("/vitals", 5000), clients = useLook(path("/node/clients", { node }), 5000);
	const v = vitals.data?.nodes.find((n) => n.node === node);
	const missing = vitals.data?.missing?.find((m) => m.node === node);
	return html`
		<${Trouble} error=${vitals.data ? missing && new Error(`It gives no numbers: ${missing.why}.`) : vitals.error} />
		${v && html`<${Facts} of=${[["Version", v.version.replace(/^.*engine\./, "")], ...facts(v)]} />
			<p class="note">On ${v.hostname}, since ${time(v.started)}.</p>`}
		<${Clients} of=${clients.data} error=${clients.error} />
		<${Part} title="Settings">${() => html`<${Config} node=${node} />`}<//>`;
}

// who are the columns that say who a client is.
const who = [{ name: "Client", of: (c) => c.client_id || c.hostname || "–" },
	{ name: "Address", of: (c) => c.remote_address || "–" }, { name: "Agent", of: (c) => c.user_agent || "–" },
	{ name: "Protocol", of: (c) => c.version + (c.tls ? ", TLS" : "") },
	{ name: "Identity", of: (c) => c.auth_identity || "–" },
	{ name: "Since", of: (c) => (c.connect_ts ? time(c.connect_ts * 1000) : "–") }];
const count = (name, field) => ({ name, number: true, of: (c) => short(c[field]) });
const link = (at, text) => html`<a class="name" href=${at}>${text}</a>`;

function Clients({ of, error }) {
	if (!of) return html`<${Trouble} error=${error} />`;
	const cut = (all, list) => all > list.length && html`<p class="note">The first ${list.length} of ${
		all.toLocaleString("en")}.</p>`;
	return html`<h2>Producers</h2>${cut(of.producer_count, of.producers)}
		<${Table} label="Producers" rows=${of.producers} empty="No open connection has published anything." columns=${[
			...who, { name: "Published", long: true, of: (c) => (c.pub_counts ?? []).map((p, i) => html`${i > 0
				&& ", "}${link(topicLink(p.topic), p.topic)}: ${short(p.count)}`) }]} />
		<h2>Consumers</h2>${cut(of.consumer_count, of.consumers)}
		<p class="note">Those of the partitions that this node leads; they may be connected to another node.</p>
		<${Table} label="Consumers" rows=${of.consumers} empty="It delivers to nobody." columns=${[
			{ name: "Channel", of: (c) => link(channelLink(c.topic, c.channel), `${c.topic} / ${c.channel}`) }, ...who,
			count("Ready", "ready_count"), count("In flight", "in_flight_count"), count("Delivered", "message_count"),
			count("Finished", "finish_count"), count("Requeued", "requeue_count")]} />`;
}

const written = (v) => (typeof v === "object" ? JSON.stringify(v) : String(v));

function Config({ node }) {
	const look = useLook(path("/node/config", { node }), 5000);
	const [filter, setFilter] = useState(""), [all, setAll] = useState("no");
	if (!look.data) return html`<${Trouble} error=${look.error} />`;
	const rows = look.data.settings.filter((s) => (all === "yes" || s.source !== "default" || s.says !== undefined)
		&& [s.setting, written(s.value), s.source].join(" ").toLowerCase().includes(filter.toLowerCase()));
	return html`<div class="row">
			<label>Setting contains <input type="search" value=${filter} onInput=${(e) => setFilter(e.target.value)} /></label>
			<label>Show <select value=${all} onChange=${(e) => setAll(e.target.value)}><option value="no">what was set</option>
				<option value="yes">all, also defaults</option></select></label></div>
		<${Table} label="Settings" rows=${rows} keyOf=${(s) => s.setting} empty="No setting is like that." columns=${[
			{ name: "Setting", of: (s) => s.setting }, { name: "Value", long: true, of: (s) => written(s.value) },
			{ name: "Source", long: true, of: (s) => html`${s.source} ${s.says !== undefined
				&& html`<${Tag} kind="warn">says ${written(s.says)} now<//>`}` },
			{ name: "A new value", of: (s) => s.while_running }]} />`;
}
