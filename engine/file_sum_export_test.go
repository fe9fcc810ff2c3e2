package engine

// ReadCatalogFile reads node.json, or the topic.json of a directory's name, as a starting node does. An error: damage
// was seen.
func ReadCatalogFile(data []byte, dir string) error {
	if topic := new(topicMeta); len(dir) == 36 {
		return unsealFile(data, topic, func() error { return topic.check(dir) })
	}
	node := new(nodeMeta)
	return unsealFile(data, node, func() error { return node.checkFormat(NewestLevel) })
}
