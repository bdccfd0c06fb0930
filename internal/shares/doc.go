// Package shares finds out what shards cost: how much of the store each of them needs, alone and
// with others. It also finds out what chunks take. It reads only the index.
//
// # Files
//
//	divide.go   divides what is stored among groups of shards
//	packs.go    finds the stored bytes of chunks
//	weights.go  finds the stored bytes of given chunks
//	needs.go     finds the chunks that each group needs
package shares
