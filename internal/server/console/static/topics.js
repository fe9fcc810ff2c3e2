// The list of all topics: a page of it at a time, sorted and filtered by the node.
import { useEffect, useState } from "./vendor/hooks.mjs";
import { path, post, useLook } from "./api.js";
import { act, bytes, html, Missing, Pager, rate, short, span, Table, topicLink, Trouble, useAddress,
	useLater } from "./ui.js";
import { useMay } from "./may.js";
import { states } from "./overview.js";

const pageSize = 50;

export function Topics({ session }) {
	const [made, setMade] = useState(0);
	return html`<h1>Topics</h1>
		${session.view ? html`<${List} made=${made} />` : html`<${ByName} />`}
		${session.creates ? html`<${Create} session=${session} done=${() => setMade(made + 1)} />`
			: html`<p class="note">Your token may not make topics.</p>`}`;
}

function List({ made }) {
	const [filter, setFilter] = useAddress("filter");
	const [sort, setSort] = useAddress("sort", "name");
	const [at, setOffset] = useAddress("offset", 0);
	const offset = Number(at) || 0;
	const wanted = useLater(filter);
	const look = useLook(path("/topics", { filter: wanted, sort, offset: offset || undefined, count: pageSize }));
	const { data } = look;
	useEffect(() => void look.again(), [made]);
	return html`
		<div class="tools">
			<label>Name contains <input type="search" value=${filter} maxlength="64"
				onInput=${(e) => { setFilter(e.target.value.trim()); setOffset(0); }} /></label>
			<${Pager} of=${data} offset=${offset} count=${pageSize} onOffset=${setOffset} />
		</div>
		<${Missing} of=${data?.missing} />
		<${Trouble} error=${look.error} />
		${data && html`<${Table} label="Topics" rows=${data.topics} keyOf=${(t) => t.name} sorted=${sort}
			onSort=${(s) => { setSort(s); setOffset(0); }}
			empty=${wanted
				? "No topic has that in its name." : "There is no topic yet."} columns=${[
				{ name: "Topic", sort: "name", of: (t) => html`<a href=${topicLink(t.name)}>${t.name}</a> ${states(t)}` },
				{ name: "Waiting", sort: "depth", number: true, of: (t) => short(t.depth) },
				{ name: "Oldest", sort: "oldest", number: true, of: (t) => (t.oldest_seconds ? span(t.oldest_seconds) : "–") },
				{ name: "Published", sort: "published", number: true, of: (t) => rate(t.published_per_second) },
				{ name: "Delivered", sort: "delivered", number: true, of: (t) => rate(t.delivered_per_second) },
				{ name: "In flight", number: true, of: (t) => short(t.in_flight_count) },
				{ name: "Channels", number: true, of: (t) => short(t.channel_count) },
				{ name: "Consumers", number: true, of: (t) => short(t.client_count) },
				{ name: "Stored", sort: "stored", number: true, of: (t) => bytes(t.stored_bytes) },
				{ name: "Messages in all", number: true, of: (t) => short(t.published_count) },
			]} />`}`;
}

// ByName is for tokens that may look at some topics only.
function ByName() {
	const [name, set] = useState("");
	const go = (e) => {
		e.preventDefault();
		location.hash = topicLink(name);
	};
	return html`<form class="row" onSubmit=${go}>
		<label>This token may not list all topics. Open one by its name <input required value=${name}
			onInput=${(e) => set(e.target.value)} /></label>
		<button>Open</button>
	</form>`;
}

function Create({ session, done }) {
	const [name, setName] = useState("");
	const later = useLater(name);
	const refused = useMay(session, session.admin ? "" : later)?.admin === false && later === name;
	const [partitions, setPartitions] = useState("");
	const create = async (e) => {
		e.preventDefault();
		if (await act(() => post(path("/topic/create", { topic: name, partitions })), `Topic ${name} exists.`)) {
			setName("");
			done();
		}
	};
	return html`<form class="row" onSubmit=${create} aria-label="Create a topic">
		<label>New topic <input required maxlength="64" value=${name} onInput=${(e) => setName(e.target.value)} /></label>
		<label>Partitions <input type="number" min="1" placeholder="default" value=${partitions}
			onInput=${(e) => setPartitions(e.target.value)} /></label>
		<button disabled=${refused}>Create</button>
		${refused && html`<p class="note" role="status">Your token may not make a topic of this name.</p>`}
	</form>`;
}
