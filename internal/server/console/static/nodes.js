// The nodes of the cluster, or the one node.
import { path, post, useLook } from "./api.js";
import { act, bytes, Destroy, Facts, html, span, Tag, time, Trouble } from "./ui.js";
import { Lacks } from "./may.js";
import { facts } from "./node.js";
import { Health } from "./overview.js";

const presences = { live: ["good", "live"], no_lease: ["warn", "runs without a lease"], dead: ["bad", "dead"],
	unknown: ["warn", "not known"] }, states = "damaged contested short shortened unknown_topics".split(" ");

const nodeLink = (name) => `#/nodes/${encodeURIComponent(name)}`;

export function Nodes({ session, fresh }) {
	if (!session.cluster) return html`<h1>Nodes</h1><${Health} fresh=${fresh} /><${Alone}
		view=${session.view} />`;
	return html`<h1>Nodes</h1>${session.view
		? html`<${Health} cluster=${true} fresh=${fresh} /><${Members} fresh=${fresh} admin=${session.admin} />`
		: html`<${Lacks} may=${session} of="cluster" />`}`;
}

function Members({ fresh, admin }) {
	const look = useLook(path("/cluster/status", { faults: "1" }), 3000);
	const s = look.data, vitals = useLook("/vitals", 5000).data?.nodes ?? [];
	if (!s) return html`<${Trouble} error=${look.error} />`;
	const change = admin && ((where, body) => act(() => post(where, body), (r) => r.message).then(look.again));
	const r = s.rebalance;
	return html`
		<${Facts} of=${[["Controller", s.controller || "none"], ["Partitions", s.partitions],
			...Object.entries({ "Under-replicated": s.under_replicated, "Too few in sync": s.below_min_isr, "Without a leader":
				s.leaderless, Damaged: s.damaged, Contested: s.contested, Short: s.short }).map(([w, v]) => [w, v, v && "bad"]),
			["Feature level", s.level], ["Rebalance", r.state + (r.moves ? `, ${r.moves} moving` : "")]]} />
		<p class="note">As node ${s.node} knows it; the metadata store answered it ${span(s.age_ms / 1000)} ago.</p>
		${admin ? html`<div class="actions">
			<button onClick=${() => change("/cluster/rebalance", { action: "start" })}>Rebalance replicas</button>
			<button onClick=${() => change("/cluster/rebalance", { action: r.state === "paused" ? "resume" : "pause" })}>
				${r.state === "paused" ? "Resume rebalancing" : "Pause rebalancing"}</button>
		</div>` : html`<${Lacks} may=${{ view: true }} />`}
		<ul class="nodes">${s.nodes.toSorted((a, b) => (a.name < b.name ? -1 : 1)).map((n) =>
			html`<${Member} key=${n.id} n=${n} stale=${fresh.stale} change=${change}
				vital=${vitals.find((v) => v.node === n.name)}
				mixed=${s.nodes.some((o) => o.version !== n.version)} />`)}</ul>`;
}

function Member({ n, stale, change, vital, mixed }) {
	const [kind, word] = stale ? ["warn", "not known now"] : presences[n.presence] ?? ["warn", n.presence];
	return html`<li class="node ${kind}" aria-label=${`Node ${n.name}`}>
		<h2><a class="name" href=${nodeLink(n.name)}>${n.name}</a> <${Tag} kind=${kind}>${word}${
			n.presence !== "live" && !stale ? ` for ${span(n.presence_ms / 1000)}` : ""}<//>
			${n.controller && html`<${Tag}>controller<//>`} ${n.draining && html`<${Tag} kind=warn>draining<//>`}
			${n.disk !== "good" && html`<${Tag} kind=bad>disk ${n.disk}<//>`} ${states.map((w) =>
				!!n[w] && html`<${Tag} kind=bad>${n[w]} ${w.replace("_", " ")}<//>`)}</h2>
		<${Facts} of=${[["Leads", n.leaders], ["Replicas", n.replicas],
			["In sync", n.in_sync, n.in_sync < n.replicas && "bad"], n.rack && ["Rack", n.rack], ...facts(vital)]} />
		<p class="note">Number ${n.id}, version ${mixed ? html`<b>${n.version}</b> (not all nodes have it)`
			: n.version}, NSQ ${n.nsq}, HTTP ${n.https || n.http}, nodes ${n.peer}</p>
		${n.draining && n.live && n.leaders === 0 && html`<p>${n.needed > 0
			? `It leads nothing, but do not stop it yet: ${n.needed} ${n.needed === 1 ? "partition needs" : "partitions need"
				} it for min_isr, and would take no messages.`
			: "It leads nothing: it may be stopped now."}</p>`}
		${n.faults?.length > 0 && html`<details><summary>${n.faults.length === 1
			? "1 kind of fault" : `${n.faults.length} kinds of faults`} since its start</summary>
			<ul>${n.faults.map((f) => html`<li key=${f.name}>
				${f.count} × ${f.name.replaceAll("_", " ")}: ${f.words}</li>`)}</ul></details>`}
		${n.no_faults && html`<p>It did not say its faults: ${n.no_faults}</p>`}
		${change && html`<div class="actions">
			${n.draining ? html`<button onClick=${() => change("/cluster/drain", { node: n.name, on: false })}
				aria-label=${`End the drain of node ${n.name}`}>End the drain</button>`
				: html`<button onClick=${() => change("/cluster/drain", { node: n.name, on: true })}
					aria-label=${`Drain node ${n.name}`}>Drain</button>`}
			${n.presence === "dead" && html`<${Destroy} label="Remove the node" name=${n.name}
				onDo=${() => change("/cluster/remove-node", { node: n.name })}
				warning="The node is no member any more. What only it stored is lost, even if it comes back." />`}
		</div>`}
	</li>`;
}

function Alone({ view }) {
	const { data: i, error } = useLook("/info", 5000);
	const vital = useLook(view && "/vitals", 5000).data?.nodes[0];
	if (!i) return html`<${Trouble} error=${error} />`;
	return html`<ul class="nodes"><li class="node" aria-label="This node">
		<h2>${vital ? html`<a class="name" href=${nodeLink(vital.node)}>${vital.node}</a>`
			: html`<span class="name">${i.hostname}</span>`} <${Tag}>a single node<//></h2>
		<${Facts} of=${facts(vital)} />
		<p class="note">Version ${i.version.replace(/^.*engine\./, "")}, since ${time(i.start_time * 1000)},
			${" "}NSQ port ${i.tcp_port}, HTTP port ${i.http_port}</p>
		<p class="note">${i.storage.file_system} on ${i.storage.device
			|| "a device"}, written with ${i.storage.io_engine}${i.storage.direct ? ", past the page cache" : ""};
			${" "}recovered ${bytes(i.storage.recovered_bytes)} in ${span(i.storage.recovery_seconds)}.</p>
	</li></ul>`;
}
