// Who may do what: the tokens of the node's file, and what each of them has.
import { useLook } from "./api.js";
import { bytes, html, short, Table, Tag, Trouble, useAddress } from "./ui.js";

export function Tokens({ session }) {
	return html`<h1>Tokens</h1>${session.admin ? html`<${List} node=${session.node} />` : html`<p class="note">Your token
		may not read the list of tokens: that needs the permission admin on everything.</p>`}`;
}

const on = (names, what) => (names.join() === "*" ? `all ${what}` : `${what} ${names.join(", ")}`);
const grant = (g) => `${g.permissions.join(", ")} on ${on(g.topics, "topics")}${g.channels.join() === "*" ? ""
	: `, ${on(g.channels, "channels")}`}`;
const share = (field, write = short) => (t) => (t.share ? write(t.share[field]) : "–");

function List({ node }) {
	const look = useLook("/tokens", 5000), [filter, setFilter] = useAddress("contains");
	if (!look.data) return html`<${Trouble} error=${look.error} />`;
	const rows = look.data.tokens.filter((t) => [t.name, ...t.grants.map(grant)].join(" ").toLowerCase()
		.includes(filter.toLowerCase())), most = look.data.share_percent;
	return html`
		<p class="note">The tokens in the file of node ${node}, as it uses them now. A token that is taken out of the file
			ends at once, with its sessions; its topics stay.${most !== undefined && ` The topics that a token has made may
			take ${most} % of each limit of the node (token-share); a token with admin on everything has no share.`}</p>
		<div class="tools"><label>Contains <input type="search" value=${filter}
			onInput=${(e) => setFilter(e.target.value)} /></label>
			<span role="status">${rows.length} of ${look.data.tokens.length} tokens</span></div>
		<${Table} label="Tokens" rows=${rows} keyOf=${(t) => t.name} empty="No token is like that." columns=${[
			{ name: "Token", of: (t) => html`<span class="name">${t.name}</span> ${t.elsewhere
				&& html`<${Tag} kind="warn">not in the file<//>`}` },
			{ name: "May", long: true, of: (t) => t.grants.map((g, i) => html`<div key=${i}>${grant(g)}</div>`) },
			{ name: "Of a limit", number: true, of: share("of_limit", (n) => html`${(100 * n).toFixed(1)} % ${100 * n >= most
				&& html`<${Tag} kind="bad">full<//>`}`) },
			{ name: "Topics", number: true, of: share("topics") }, { name: "Partitions", number: true, of: share("partitions") },
			{ name: "State", number: true, of: share("state_bytes", bytes) },
			{ name: "Stored", number: true, of: share("stored_bytes", bytes) },
			{ name: "Sessions", number: true, of: (t) => short(t.sessions) }]} />`;
}
