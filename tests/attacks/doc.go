// Package attacks takes each resource of a node (shares.Table) as a stranger and as a tenant would, while another
// tenant publishes 1,000 messages a second, and measures what that one notices.
//
// For each resource the tests start an engine of this tree as a process of its own. They write down, for a quiet time
// and for the time of the attack: the errors and the 99th percentile of the publisher's answers, whether new clients
// of another address get in, and the memory of the node; and whether all is as before 5 s after the attack.
//
// `make attacks` attacks for 20 s each. Before a merge each attack lasts for two seconds, beside others.
package attacks
