// Package dir handles the files in a data directory besides the commit log and the partitions' logs: node.json with the
// directory's feature level, one topic.json per topic, the trash, and the list of copies that a recovery shortened. The
// commit log's log.mark is made here together with node.json.
//
// The engine reads and writes the files of the catalog when it opens and when a topic changes; catalog.Catalog
// serializes the work on topic.json. NodeFile and Shortened, which recovery and the replicas use, have their own locks.
// The package knows nothing of partitions, and starts no goroutine.
//
// Every file is replaced as a whole: a crash leaves either the old content or the new one. The next start repairs a
// second copy that differs from its file.
package datadir
