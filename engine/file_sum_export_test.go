package engine

import "penstock/engine/dir"

// ReadCatalogFile checks the content of node.json, or of the topic.json in a directory named of, as a starting node
// does. It returns an error if it finds damage.
func ReadCatalogFile(data []byte, of string) error {
	if topic := new(dir.Topic); len(of) == 36 {
		return dir.UnsealFile(data, topic, func() error { return topic.Check(of) })
	}
	node := new(dir.Node)
	return dir.UnsealFile(data, node, func() error { return node.CheckFormat(NewestLevel) })
}
