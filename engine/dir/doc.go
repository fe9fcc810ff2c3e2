// Package dir has what is in a data directory beside the commit log and the partitions' logs: node.json with the
// directory's feature level, topic.json of each topic, the trash, and the list of copies that a recovery shortened.
//
// The engine reads and writes the files of the catalog when it opens, and when a topic changes; Engine.catalog
// orders what is done with topic.json. NodeFile and Shortened, which recovery and the replicas use, have locks of their
// own. The package knows nothing of partitions, and starts no goroutine.
//
// Every file is replaced as a whole: a crash leaves the old content or the new one, and the next start mends a second
// copy that differs.
package dir
