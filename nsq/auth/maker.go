package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"penstock/engine/base"
)

// Maker returns the name of the token for which the topics count that the principal makes: see engine.TopicOptions. It
// is empty for who administers the node, whose topics count for nobody; so it is for nil, where clients have to prove
// nothing.
func (p *Principal) Maker() string {
	if May(p, Admin, Node()) {
		return ""
	}
	name := strings.ToValidUTF8(p.name, "?")
	if name == "" {
		return "an identity without a name" // an auth server's answer
	}
	if len(name) > base.MaxTokenName { // two long names stay two
		sum := sha256.Sum256([]byte(name))
		mark := "~" + hex.EncodeToString(sum[:8])
		name = strings.ToValidUTF8(name[:base.MaxTokenName-len(mark)], "") + mark
	}
	return name
}
