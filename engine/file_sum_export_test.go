package engine

import "penstock/engine/dir"

// ReadCatalogFile reads node.json, or the topic.json of a directory's name, as a starting node does. An error: damage
// was seen.
func ReadCatalogFile(data []byte, of string) error {
	if topic := new(dir.Topic); len(of) == 36 {
		return dir.UnsealFile(data, topic, func() error { return topic.Check(of) })
	}
	node := new(dir.Node)
	return dir.UnsealFile(data, node, func() error { return node.CheckFormat(NewestLevel) })
}
