// Package ent contains code that is generated from the entities in package schema: filers, shards
// and snapshots. The other tables are not entities. Their statements are in packages entindex,
// pgindex and sqliteindex.
//
// ent always generates the packages enttest and hook, which nothing uses.
package ent

//go:generate go tool ent generate --feature sql/execquery,sql/lock,sql/versioned-migration --target . ./schema
//go:generate rm -r enttest hook
//go:generate go run ./migratediff -migrations ../../../migrations
