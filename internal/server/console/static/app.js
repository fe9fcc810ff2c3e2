// The console: which page is shown, who is logged in, and how old everything on the page is.
import { h, render } from "./vendor/preact.mjs";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";
import { doubts, freshness, get, send, useNow } from "./api.js";
import { Announcements, announce, html, span } from "./ui.js";
import { Overview } from "./overview.js";
import { Topics } from "./topics.js";
import { Topic } from "./topic.js";
import { Channel } from "./channel.js";
import { Nodes } from "./nodes.js";
import { Node } from "./node.js";
import { Audit } from "./audit.js";
import { Tokens } from "./tokens.js";

const places = [["", "Overview"], ["topics", "Topics"], ["nodes", "Nodes"], ["tokens", "Tokens"], ["audit", "Audit"]];
// offered says which pages are named: those about everybody only to who may read them.
const offered = (name, s) => (name === "tokens" ? s.auth && s.admin : name !== "audit" || s.admin);
const period = 10000; // ms between two questions what the token may do

function route() {
	try {
		return location.hash.replace(/^#\/?/, "").split("?")[0].split("/").map(decodeURIComponent);
	} catch {
		return [""];
	}
}

function page([name, topic, channel], props) {
	if (name === "topics" && channel) return h(Channel, { key: `${topic}/${channel}`, topic, channel, ...props });
	if (name === "topics" && topic) return h(Topic, { key: topic, topic, ...props });
	if (name === "nodes" && topic) return h(Node, { key: `node/${topic}`, name: topic, ...props });
	return h({ "": Overview, topics: Topics, nodes: Nodes, tokens: Tokens, audit: Audit }[name] ?? Nowhere,
		{ key: name, ...props });
}

const Nowhere = () => html`<h1>No such page</h1><p>The console has the pages that are named above.</p>`;

function App() {
	const [at, setAt] = useState(route());
	const [session, setSession] = useState(null);
	const main = useRef(), first = useRef(true), timer = useRef(), turn = useRef(0);
	const now = useNow();
	const fresh = freshness(now);
	const know = (s) => ++turn.current && setSession(s); // answers to what was asked before are out of date
	// What the token may do can change at any time: it is asked for again and again, and so is what depends on it.
	const ask = async () => {
		const mine = ++turn.current;
		const [s, error] = await get("/session").then((s) => [s], (e) => [null, e]);
		if (mine === turn.current) setSession((had) => (s ? { ...s, lost: !s.name && (had?.lost || had?.name) }
			: had ?? { error }));
		clearTimeout(timer.current);
		timer.current = setTimeout(ask, s ? period : 2000);
	};
	useEffect(() => {
		ask();
		doubts.add(ask);
		const moved = () => setAt(route());
		addEventListener("hashchange", moved);
		moved(); // the address may have changed since the first picture, before anybody listened
		return () => removeEventListener("hashchange", moved);
	}, []);
	// After a change of the page the focus goes to it, so that a screen reader reads it.
	useEffect(() => {
		if (!first.current) main.current?.focus();
		first.current = false;
		const titled = at.filter(Boolean).join(" / ") || "overview";
		document.title = `${titled} – Penstock`;
		scrollTo(0, 0);
	}, [at.join("/")]);
	if (!session) return html`<p class="start">Asking the node…</p>`;
	if (session.error) return html`<main><p class="trouble" role="alert">
		The console tries again: ${session.error.message}.</p></main>`;
	const out = async () => {
		await send("DELETE", "/session").then(know, (e) => announce(e.message, "bad"));
	};
	return html`
		<a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); main.current?.focus(); }}>Skip to content</a>
		<header>
			<a class="brand" href="#/"><img src="icon.svg" alt="" width="24" height="24" /> Penstock</a>
			${(!session.auth || session.name) && html`<nav aria-label="Pages">${places.filter(([name]) => offered(name,
				session)).map(([name, title]) => html`<a key=${name} href=${`#/${name}`}
				aria-current=${(at[0] || "") === name ? "page" : undefined}>${title}</a>`)}</nav>`}
			<p class="who">${session.node && html`<span>node <b class="name">${session.node}</b></span>`}
				${session.auth && session.name && html`<span> as <b class="name">${session.name}</b></span> <button
					onClick=${out}>Log out</button>`}</p>
		</header>
		<${Fresh} of=${fresh} />
		<main id="main" tabindex="-1" ref=${main} class=${fresh.stale ? "stale" : ""}>
			${session.auth && !session.name
				? html`<${Login} done=${know} lost=${session.lost} />` : page(at, { session, fresh })}
		</main>
		<${Announcements} />`;
}

// Fresh says how old the page is as soon as it is older than it should be.
function Fresh({ of }) {
	if (!of.stale) return html`<div class="fresh" role="status">${of.waits && html`<p>Asking the node…</p>`}</div>`;
	const seconds = Math.floor(of.age / 1000);
	// While nobody looked at the page, the console asked nothing.
	if (!of.error) return html`<div class="fresh stale" role="status">
		What is shown is old. The node is asked again…</div>`;
	return html`<div class="fresh stale" role="status">
		<strong>No answer for <span aria-hidden="true">${seconds < 120 ? `${seconds} s` : span(seconds)}</span><span
			class="unseen">some time</span>:</strong> what is
		shown is that old (${of.error.message}).</div>`;
}

function Login({ done, lost }) {
	const [token, setToken] = useState("");
	const [error, setError] = useState(null);
	const field = useRef();
	useEffect(() => field.current.focus(), []); // also when a session ended while a page was open
	const login = async (e) => {
		e.preventDefault();
		try {
			done(await send("POST", "/session", { token }));
		} catch (err) {
			setError(err);
		}
	};
	return html`<form class="login" onSubmit=${login}>
		<h1>Log in</h1>
		${lost && html`<p class="missing" role="alert">Your session has ended, or the node does not know your token any
			more: it has expired, or was taken out of the node's file.</p>`}
		<p>This node asks for a token. It stays with the node, in memory, and this browser gets the number of a session,
			${" "}until it ends or you log out.</p>
		<label>Token <input type="password" required autocomplete="current-password" value=${token}
			onInput=${(e) => setToken(e.target.value)} ref=${field} /></label>
		${error && html`<p class="trouble" role="alert">${error.message}</p>`}
		<div class="buttons"><button>Log in</button></div>
	</form>`;
}

const app = document.getElementById("app");
app.replaceChildren();
render(h(App), app);
