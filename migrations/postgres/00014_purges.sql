-- Purges: paths that are removed from snapshots that are kept, and the amended records of these.
-- Binaries of version 2 can work with this schema, but do not delete amended records of forgotten
-- snapshots.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (14, 2);
-- Snapshots whose commit record was amended, or must be.
CREATE TABLE amendments (
    snapshot uuid    NOT NULL PRIMARY KEY,
    sequence int     NOT NULL, -- of the valid record; 0: the one that was written after the commit
    base     uuid    NULL,     -- the snapshot with whose pages the segment was compared; NULL: that of the snapshot
    stale    boolean NOT NULL  -- the record must be amended: the index has changed since it was written
);
-- Purges that are not complete. Nothing of a purge is left here when it is.
CREATE TABLE purges (
    id          uuid   NOT NULL PRIMARY KEY,
    shard       bigint NOT NULL,
    path        bytea  NOT NULL, -- empty: the index has nothing of it any more
    since       bigint NOT NULL, -- the least number of a snapshot from which it is removed
    by          text   NOT NULL,
    reason      text   NOT NULL,
    started     bigint NOT NULL, -- microseconds since 1970
    snapshots   bigint NOT NULL,
    files       bigint NOT NULL,
    directories bigint NOT NULL,
    bytes       bigint NOT NULL
);
-- The chunks of what was removed, and the objects that had those which nothing else needs.
CREATE TABLE purge_chunks (
    purge uuid  NOT NULL,
    chunk bytea NOT NULL,
    PRIMARY KEY (purge, chunk)
);
CREATE TABLE purge_objects (
    purge    uuid NOT NULL,
    snapshot uuid NOT NULL,
    object   uuid NOT NULL,
    PRIMARY KEY (purge, object)
);

-- +goose Down
DROP TABLE purge_objects;
DROP TABLE purge_chunks;
DROP TABLE purges;
DROP TABLE amendments;
DELETE FROM schema_versions WHERE version = 14;
