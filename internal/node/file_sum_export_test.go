package node

import "penstock/internal/node/datadir"

// ReadCatalogFile checks the content of node.json, or of the topic.json in a directory named of, as a starting node
// does. It returns an error if it finds damage.
func ReadCatalogFile(data []byte, of string) error {
	if topic := new(datadir.Topic); len(of) == 36 {
		return datadir.UnsealFile(data, topic, func() error { return topic.Check(of) })
	}
	node := new(datadir.Node)
	return datadir.UnsealFile(data, node, func() error { return node.CheckFormat(NewestLevel) })
}
