// Package admin is the operators' HTTP interface of a cluster, under /cluster/ of every node's HTTP address.
//
//	GET  /cluster/status                                                               Status
//	GET  /cluster/topics?topic=NAME                                                    Topics; without topic: all
//	POST /cluster/drain         {"node", "on"}                                         Done
//	POST /cluster/move          {"topic", "partition", "from", "to"}                   Done
//	POST /cluster/transfer-leader  {"topic", "partition", "to"}; without to: the best  Done
//	POST /cluster/force-leader  {"topic", "partition", "node", "i_accept_data_loss", "dry_run"}   Done
//	POST /cluster/remove-node   {"node"}                                               Done
//	POST /cluster/expand        {"topic", "partitions"}                                Done
//	POST /cluster/create-topic  {"topic", "partitions", "replicas"}                    Done
//	POST /cluster/set-replicas  {"topic", "replicas"}                                  Done
//	GET  /cluster/rebalance                                                            Plan
//	POST /cluster/rebalance     {"action"}                                             Done
//	POST /cluster/upgrade       {"level"}                                              Done
//	POST /cluster/verify        {"topic", "partition", "at"}                           a comparison of the replicas
//
// Any node answers for the whole cluster. Answers come from its copy of the metadata, and say how old it may be; who is
// live, and what is served, is by what the node knows itself, where that is younger (package health). Changes go to the
// metadata store, which decides. A request names a node by its name or its number. If one node's name is another node's
// number, the name counts. Every error is {"message"} with one sentence:
//
//	400 the request is wrong        404 no such topic, partition, node or path    405 wrong method
//	413 the body is too large       409 the cluster's state does not allow it     500 anything else
//	503 the store does not answer, and the sentence says what became of the change; or this node has not joined
//	504 the node gave up waiting for the store: the change may have been made
package admin
