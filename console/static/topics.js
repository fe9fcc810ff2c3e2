// The list of all topics: a page of it at a time, sorted and filtered by the node.
import { useEffect, useState } from "./vendor/hooks.mjs";
import { path, post, useLook } from "./api.js";
import { act, bytes, html, Missing, rate, short, span, Table, topicLink, Trouble } from "./ui.js";
import { states } from "./overview.js";

const pageSize = 50;

// useLater returns a value once it has not changed for a moment, so that not every letter is a request.
function useLater(value, ms = 250) {
	const [late, set] = useState(value);
	useEffect(() => {
		const timer = setTimeout(() => set(value), ms);
		return () => clearTimeout(timer);
	}, [value]);
	return late;
}

export function Topics() {
	const [filter, setFilter] = useState("");
	const [sort, setSort] = useState("name");
	const [offset, setOffset] = useState(0);
	const wanted = useLater(filter);
	useEffect(() => setOffset(0), [wanted, sort]);
	const look = useLook(path("/topics", { filter: wanted, sort, offset: offset || undefined, count: pageSize }));
	const { data } = look;
	const last = data ? Math.min(data.count, offset + pageSize) : 0;
	return html`
		<h1>Topics</h1>
		<div class="tools">
			<label>Name contains <input type="search" value=${filter} maxlength="64"
				onInput=${(e) => setFilter(e.target.value.trim())} /></label>
			<nav aria-label="Pages of the list">
				<button disabled=${offset === 0} onClick=${() => setOffset(Math.max(0, offset - pageSize))}>Previous</button>
				<span role="status">${data ? (data.count === 0
					? "none" : `${offset + 1}–${last} of ${data.count.toLocaleString()}`) : "…"}</span>
				<button disabled=${!data || last >= data.count} onClick=${() => setOffset(offset + pageSize)}>Next</button>
			</nav>
		</div>
		<${Missing} of=${data?.missing} />
		<${Trouble} error=${look.error} />
		${look.error?.status === 403 && html`<${ByName} />`}
		${data && html`<${Table} label="Topics" rows=${data.topics} keyOf=${(t) => t.name} sorted=${sort} onSort=${setSort}
			empty=${wanted
				? "No topic has that in its name." : "There is no topic yet: the form below makes one."} columns=${[
				{ name: "Topic", sort: "name", of: (t) => html`<a href=${topicLink(t.name)}>${t.name}</a> ${states(t)}` },
				{ name: "Published", sort: "published", number: true, of: (t) => rate(t.published_per_second) },
				{ name: "Delivered", sort: "delivered", number: true, of: (t) => rate(t.delivered_per_second) },
				{ name: "Waiting", sort: "depth", number: true, of: (t) => short(t.depth) },
				{ name: "Oldest", sort: "oldest", number: true, of: (t) => (t.oldest_seconds ? span(t.oldest_seconds) : "–") },
				{ name: "In flight", number: true, of: (t) => short(t.in_flight_count) },
				{ name: "Channels", number: true, of: (t) => short(t.channel_count) },
				{ name: "Consumers", number: true, of: (t) => short(t.client_count) },
				{ name: "Stored", sort: "stored", number: true, of: (t) => bytes(t.stored_bytes) },
				{ name: "Ever", number: true, of: (t) => short(t.published_count) },
			]} />`}
		<${Create} done=${look.again} />`;
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

function Create({ done }) {
	const [name, setName] = useState("");
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
		<button>Create</button>
	</form>`;
}
