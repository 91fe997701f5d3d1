"""Programs that train by other methods than one forward, one backward and one step."""
