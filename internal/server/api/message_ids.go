package api

import (
	"fmt"
	"net/http"
	"net/url"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/server/web"
)

// messageIDs parses the values of id, at most channel.MaxListCount.
func messageIDs(texts []string) ([]node.ID, error) {
	if len(texts) > channel.MaxListCount {
		return nil, badArgument("%d ids are more than a request may name, which is %d; nothing was changed", len(texts),
			channel.MaxListCount)
	}
	var ids []node.ID
	for _, text := range texts {
		id, err := batch.ParseID([]byte(text))
		if err != nil {
			return nil, badArgument("id=%q is not a message id, which has 16 lower-case hex digits; nothing was changed", text)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// serveChannelFinish finishes one message of the channel, whoever has it in flight.
func serveChannelFinish(c *node.Channel, r *http.Request, q url.Values) (any, error) {
	ids, err := messageIDs(q["id"])
	if err != nil {
		return nil, err
	}
	if len(ids) != 1 {
		return nil, badArgument("say one id; nothing was changed")
	}
	waits, err := c.Peek(r.Context(), node.PeekOptions{Partition: int(ids[0].Partition()), From: ids[0], Count: 1})
	if err != nil {
		return nil, err
	}
	if len(waits) == 0 || waits[0].ID != ids[0] {
		return nil, web.Fail(404, fmt.Sprintf("message %v does not wait in channel %s: it is finished, is not delivered to "+
			"the channel, or does not exist; nothing was changed", ids[0], c.Name()))
	}
	return nil, c.Finish(r.Context(), ids[0])
}
