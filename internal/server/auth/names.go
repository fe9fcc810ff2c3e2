package auth

// Names returns the names of the tokens in the file, as it was last read. A nil Authority has none.
func (a *Authority) Names() []string {
	if a == nil {
		return nil
	}
	f := a.tokens.Load()
	if f == nil {
		return nil
	}
	names := make([]string, 0, len(f.tokens))
	for i := range f.tokens {
		names = append(names, f.tokens[i].principal.Name())
	}
	return names
}
