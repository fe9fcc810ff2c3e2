package clientotel

import (
	"penstock/client"
)

// headers lets a propagator read and write the headers of a message.
type headers struct{ all []client.Header }

// Get returns the first value of a header, as readers of other languages do.
func (h *headers) Get(name string) string {
	for i := range h.all {
		if string(h.all[i].Key) == name {
			return string(h.all[i].Value)
		}
	}
	return ""
}

// Set replaces all headers of that name by one.
func (h *headers) Set(name, value string) {
	kept := h.all[:0]
	for _, one := range h.all {
		if string(one.Key) != name {
			kept = append(kept, one)
		}
	}
	h.all = append(kept, client.Header{Key: []byte(name), Value: []byte(value)})
}

// Keys returns the names of all headers.
func (h *headers) Keys() []string {
	names := make([]string, len(h.all))
	for i := range h.all {
		names[i] = string(h.all[i].Key)
	}
	return names
}
