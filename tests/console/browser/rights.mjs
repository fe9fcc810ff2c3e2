// rights: each token is offered what it may do, and nothing else; and no page asks for what the node would refuse.
import { fits, go, heading, named, openParts, phone, row, usable } from "./scenarios.mjs";

async function login(page, token) {
	await page.getByLabel("Token").fill(token);
	await page.keyboard.press("Enter");
	await page.getByText(`as ${token}`).waitFor();
}

async function logout(page) {
	await page.getByRole("button", { name: "Log out" }).click();
	await heading(page, "Log in");
}

// offers waits until the names of all buttons and of all parts that can be opened, outside of tables, are these: the
// parts of a page ask the node one by one.
async function offers(t, page, what, want) {
	const found = () => page.evaluate(() => [...document.querySelectorAll("main button, main summary")]
		.filter((e) => e.checkVisibility() && !e.closest("table, .pager")).map((e) => e.textContent.trim()));
	const right = async () => JSON.stringify(await found()) === JSON.stringify(want);
	for (const end = Date.now() + 60000; !(await right()) && Date.now() < end;) await page.waitForTimeout(50);
	t.check(await right(), `${what} offers ${await found()}; wanted: ${want}`);
}

// seen checks what every page has to be, and takes its picture.
async function seen(t, page, what) {
	await named(t, page, what);
	await usable(t, page, what);
	await t.shot(page, `rights-${what}`);
}

const topicParts = ["Publish", "Peek at stored messages", "Settings"];
const topicChanges = ["Pause", "Empty the topic…", "Delete the topic…"];
const channelParts = ["In flight", "Deferred", "Peek at waiting messages", "Seek", "Settings"];
const channelChanges = ["Pause", "Redrive dead letters…", "Empty the channel…", "Delete the channel…"];

// looker may look at everything.
async function looker(t, page) {
	await login(page, "looker");
	await page.getByText("Healthy").waitFor();
	const pages = page.getByRole("navigation", { name: "Pages" });
	const names = (await pages.innerText()).split(/\s+/).join();
	t.check(names === "Overview,Topics,Nodes", `the pages are ${names}`);
	await go(page, "#/audit");
	await page.getByText("Your token may not read the audit trail").waitFor();
	await go(page, "#/tokens");
	await page.getByText("may not read the list of tokens").waitFor();
	await go(page, "#/topics");
	await row(page, "orders").first().waitFor();
	await page.getByText("Your token may not make topics.").waitFor();
	await offers(t, page, "the list of topics", []);
	await seen(t, page, "topics-looker");
	await go(page, "#/topics/orders");
	await row(page, "billing").first().waitFor();
	await page.getByText("Your token may look, not change anything or read messages.").waitFor();
	await row(page, "ok").first().waitFor(); // the partitions
	t.check((await page.getByRole("button", { name: "Transfer" }).count()) === 0, "leaderships can be transferred");
	await offers(t, page, "a topic", ["Settings"]);
	await openParts(page);
	await page.getByText("default: the node's setting. Read only.").waitFor();
	await offers(t, page, "a topic's settings", ["Settings", "Reload"]);
	const open = await page.locator(".settings").locator("input, select, textarea").evaluateAll(
		(fields) => fields.filter((f) => !f.readOnly && !f.disabled).length);
	t.check(open === 0, `${open} settings can be typed into`);
	await seen(t, page, "topic-looker");
	await go(page, "#/topics/orders/billing");
	await page.getByText("Your token may look, not change anything or read messages.").waitFor();
	await offers(t, page, "a channel", ["In flight", "Deferred", "Settings"]);
	await openParts(page);
	await page.getByRole("region", { name: "Deferred messages" }).waitFor();
	await page.getByText("Read only.").waitFor();
	await seen(t, page, "channel-looker");
	await page.setViewportSize(phone);
	await fits(t, page, "a channel");
	await t.shot(page, "rights-channel-looker-phone");
	await page.setViewportSize({ width: 1280, height: 800 });
	await go(page, "#/nodes");
	await page.getByRole("listitem", { name: "Node n1" }).waitFor();
	await page.getByText("Your token may look, not change.").waitFor();
	await offers(t, page, "the page of nodes", []);
	await seen(t, page, "nodes-looker");
	await page.getByRole("link", { name: "n1", exact: true }).click();
	await heading(page, "n1");
	await page.getByText("No open connection has published anything.").waitFor();
	await offers(t, page, "the page of a node", ["Settings"]);
	await openParts(page);
	await row(page, "auth_file").first().waitFor();
	await page.setViewportSize(phone);
	await fits(t, page, "a node");
	await page.setViewportSize({ width: 1280, height: 800 });
	await go(page, "#/nodes");
	await page.getByRole("listitem", { name: "Node n1" }).waitFor();
	await logout(page);
}

// owner may do everything with the topics whose names begin with orders.
async function owner(t, page) {
	await login(page, "owner");
	await page.getByText("Your token may not look at this cluster.").waitFor(); // the page of nodes is open
	await offers(t, page, "the page of nodes", []);
	await go(page, "#/nodes/n1");
	await page.getByText("Your token may not look at this node.").waitFor();
	await go(page, "#/tokens");
	await page.getByText("may not read the list of tokens").waitFor();
	await go(page, "#/");
	await page.getByRole("link", { name: "open a topic by its name" }).click();
	await heading(page, "Topics");
	await page.getByLabel("New topic").fill("payments-late");
	await page.getByText("Your token may not make a topic of this name.").waitFor();
	const create = page.getByRole("form", { name: "Create a topic" }).getByRole("button", { name: "Create" });
	t.check(await create.isDisabled(), "a topic of another name can be made");
	await seen(t, page, "topics-owner");
	await page.getByLabel("New topic").fill("orders-late");
	await page.getByText("Your token may not make a topic of this name.").waitFor({ state: "detached" });
	await create.click();
	await page.getByText("Topic orders-late exists.").waitFor();
	await go(page, "#/topics/payments");
	await page.getByText("Your token may not look at this topic.").waitFor();
	await offers(t, page, "somebody else's topic", []);
	await seen(t, page, "topic-of-others");
	await go(page, "#/topics/payments/c");
	await page.getByText("Your token may neither look into this channel nor change it.").waitFor();
	await go(page, "#/topics/orders");
	await row(page, "ok").first().waitFor();
	await page.getByRole("button", { name: "Pause" }).waitFor();
	await offers(t, page, "one's own topic", ["Create", ...topicParts, ...topicChanges]);
	t.check((await page.getByRole("button", { name: "Transfer" }).count()) === 0, "leaderships can be transferred");
	await seen(t, page, "topic-owner");
	await page.getByText("Peek at stored messages").click();
	await page.getByLabel("Key", { exact: true }).fill("customer-1");
	await page.getByRole("button", { name: "Search" }).click();
	await page.getByText(/^9 messages among 60 that were looked at/).waitFor();
	await page.getByText("Settings", { exact: true }).click();
	await page.getByLabel("Quota messages").fill("500000");
	await page.getByRole("button", { name: "Save" }).click();
	await page.getByText("The settings are saved.").waitFor();
	await go(page, "#/topics/orders/billing");
	await page.getByRole("button", { name: "Pause" }).waitFor();
	await offers(t, page, "a channel of one's own topic", [...channelParts, ...channelChanges]);
	await logout(page);
}

// filler may publish to the topic orders, and mailer may administer some channels of it.
async function parts(t, page) {
	await login(page, "filler");
	await go(page, "#/topics");
	await page.getByLabel("This token may not list all topics").fill("orders");
	await page.getByRole("button", { name: "Open" }).click();
	await page.getByText("Your token may publish to this topic, not look at it.").waitFor();
	await offers(t, page, "a topic for publishers", ["Publish"]);
	await openParts(page);
	await page.getByLabel("Message", { exact: true }).fill("from the filler");
	await page.getByRole("button", { name: "Publish" }).click();
	await page.getByText("The message is stored in orders.").waitFor();
	await seen(t, page, "topic-filler");
	await logout(page);
	await login(page, "mailer");
	await page.getByLabel("New channel").fill("bills");
	await page.getByText("Your token may not make a channel of this name.").waitFor();
	await seen(t, page, "topic-mailer");
	await page.getByLabel("New channel").fill("mail-2");
	await page.getByText("Your token may not make a channel of this name.").waitFor({ state: "detached" });
	await page.keyboard.press("Enter");
	await page.getByText("Channel mail-2 exists.").waitFor();
	await go(page, "#/topics/orders/billing");
	await page.getByText("Your token may neither look into this channel nor change it.").waitFor();
	await offers(t, page, "somebody else's channel", []);
	await seen(t, page, "channel-of-others");
	await go(page, "#/topics/orders/mail");
	await page.getByRole("button", { name: "Pause" }).waitFor();
	await offers(t, page, "one's own channel", [...channelParts, ...channelChanges]);
	await logout(page);
}

export async function rights(t) {
	const page = await t.open(t.urls[0]);
	// What is asked for just when somebody logs out; and the list of topics, before a page has heard of other rights.
	t.expect((text) => text.includes("401") || text.includes("403") && text.includes("/topics?"));
	await heading(page, "Log in");
	await looker(t, page);
	await owner(t, page);
	await parts(t, page);
	// A right is taken away while a page offers it: the page is told no, and offers it no longer.
	await login(page, "owner");
	await go(page, "#/topics/orders");
	await page.getByText("Settings", { exact: true }).click();
	await page.getByLabel("Quota messages").fill("7");
	t.expect((text) => text.includes("401") || text.includes("403"));
	let answer;
	const held = new Promise((done) => (answer = done));
	const session = (u) => u.pathname === "/session";
	await page.route(session, async (r) => { // so that the page does not hear of it before the click
		await held;
		await r.continue();
	});
	await t.ask("let the owner look only");
	await page.getByRole("button", { name: "Pause" }).click();
	await page.getByText("This token may not do that: it lacks the permission.").waitFor();
	answer();
	await page.getByText("Your token may look, not change anything or read messages.").waitFor();
	await offers(t, page, "a topic whose right is gone", ["Settings", "Reload"]);
	t.check((await page.getByLabel("Quota messages").inputValue()) === "7", "what was typed is gone");
	// It is given back: the page that is open offers it again by itself, and takes it away again.
	await t.ask("let the owner own");
	await page.getByRole("button", { name: "Pause" }).waitFor({ timeout: 120000 });
	t.check((await page.getByLabel("Quota messages").inputValue()) === "7", "what was typed is gone with new rights");
	await t.ask("let the owner look only");
	await page.getByRole("button", { name: "Pause" }).waitFor({ state: "detached", timeout: 120000 });
	await logout(page);
	// The audit tells of this one refusal: no page has asked for what it was not to see. Only the list of topics may be
	// asked for by a page whose rights have just changed, by a login or by an operator, before it hears of that. What a
	// page asked while it was logged out may be answered when nobody is logged in any more.
	await login(page, "root");
	await page.getByRole("button", { name: "Transfer the leadership of partition 0" }).waitFor();
	await offers(t, page, "a topic", ["Create", "Move a replica", ...topicParts, ...topicChanges]);
	await go(page, "#/nodes");
	await page.getByRole("button", { name: "Drain node n1" }).waitFor();
	await offers(t, page, "the page of nodes", ["Rebalance replicas", "Pause rebalancing", "Drain"]);
	const told = await page.evaluate(async () => (await (await fetch("/audit?count=200")).json()).entries
		.filter((e) => e.kind === "refused" && e.what !== "GET /topics" && e.who !== "anyone")
		.map((e) => `${e.who} ${e.what} ${e.names}`));
	t.check(told.length === 1 && told[0].startsWith("owner") && told[0].includes("/topic/pause"),
		`refused: ${told.join("; ")}`);
	await go(page, "#/audit");
	await row(page, "refused").first().waitFor();
}
